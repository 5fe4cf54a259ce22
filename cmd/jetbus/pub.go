package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

// maxPayload bounds what is read from standard input for one event; what the
// server takes may be less.
const maxPayload = 64 << 20

// linesBatch is how many lines are published at once, at most: what is there is not kept
// waiting for more.
const linesBatch = 500

// pubOptions are the flags of pub.
type pubOptions struct {
	key, id, contentType, at, output string
	headers, tags                    []string
	ttl                              time.Duration
	count                            int
	lines                            bool
}

func newPub(a *app) *cobra.Command {
	var o pubOptions
	cmd := &cobra.Command{
		Use:   "pub TOPIC [PAYLOAD|-]",
		Short: "Publish an event, or one for each line of standard input",
		Long: `Publishes an event and returns when it is stored.

PAYLOAD is stored as it is; "-" reads it from standard input, and stores that as it is. Without
PAYLOAD it is read from there, too, where that is a pipe, a socket or a file, and one line end
behind it is left out (so in a loop that reads standard input, say PAYLOAD, or </dev/null).
Otherwise the event has none, as with ''. A payload that is not JSON gets the content type text/plain or
application/octet-stream, unless --content-type says another.

With --lines each line of standard input is the payload of an event, as soon as it comes.
Lines must be JSON unless --content-type is given, and are stored without their line ends then.
White space around JSON is left out. Empty lines are skipped. If it fails half
way, or is interrupted, and some are stored, the exit code is 5 and the message says how many.`,
		Example: `  jetbus pub orders.created '{"id": 7}' --key 7
  jetbus pub orders.created '{"id": 7}' --id order-7 --header x-source=shop
  jq .order shop.json | jetbus pub orders.created
  jetbus pub reminders.due '{"id": 7}' --at 10m
  jetbus pub orders.created --lines < orders.ndjson`,
		Args: between(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error { return a.pub(cmd, o, args) },
	}
	f := cmd.Flags()
	f.StringVar(&o.key, "key", "", "key of the event: what it is about")
	f.StringVar(&o.id, "id", "", "id; publishing an id again within the topic's duplicate window stores nothing (default a new UUID)")
	f.StringArrayVar(&o.headers, "header", nil, "header x-name=value; may be repeated")
	f.StringArrayVar(&o.tags, "tag", nil, "tag; may be repeated")
	f.DurationVar(&o.ttl, "ttl", 0, "remove the event after this time, whole seconds")
	f.StringVar(&o.at, "at", "", "deliver at this time (RFC 3339) or after this long (10m); the topic needs delays")
	f.StringVar(&o.contentType, "content-type", "", "media type of the payload")
	f.IntVar(&o.count, "count", 1, "publish the payload that many times")
	f.BoolVar(&o.lines, "lines", false, "publish each line of standard input")
	f.StringVarP(&o.output, "output", "o", "text", "text, or json: one object an event")
	return cmd
}

// pub publishes what the command line says.
func (a *app) pub(cmd *cobra.Command, o pubOptions, args []string) error {
	e, po, err := o.event(args[0], time.Now())
	switch {
	case err != nil:
		return err
	case o.lines && (len(args) > 1 || o.id != "" || o.count != 1 || o.ttl != 0 || o.at != ""):
		return usagef("--lines takes neither a payload nor --id, --count, --ttl and --at")
	case o.count < 1:
		return usagef("--count %d: use 1 or more", o.count)
	case o.id != "" && o.count > 1:
		return usagef("--id with --count: all but the first would be duplicates")
	}
	switch in := cmd.InOrStdin(); {
	case len(args) > 1 && args[1] != "-":
		e.Payload = []byte(args[1])
	case len(args) > 1:
		e.Payload, err = readPayload(cmd.Context(), in)
	case !o.lines && isFed(in):
		over := later(cmd.ErrOrStderr(), "reading the payload from standard input; say '' for none")
		e.Payload, err = readPiped(cmd.Context(), in, o.contentType == "")
		over()
	}
	if err != nil {
		return err
	}
	setContentType(&e)
	if err := e.Validate(); err != nil {
		return err
	}
	err = a.withBus(cmd.Context(), func(bus *adapter.Bus) error {
		p := publishing{out: cmd.OutOrStdout(), json: o.output == "json", lines: o.lines}
		if o.lines {
			return p.publishLines(cmd.Context(), bus, e, cmd.InOrStdin(), o.contentType == "")
		}
		return p.publishTimes(cmd.Context(), bus, e, po, o.count)
	})
	if err == nil && o.contentType == "" && bytes.HasPrefix(e.Payload, byteOrderMark) {
		fmt.Fprintln(cmd.ErrOrStderr(), "the payload begins with a byte order mark, so it is not JSON")
	}
	if err == nil && len(args) == 1 && o.contentType == "" && severalValues(e.Payload) {
		fmt.Fprintln(cmd.ErrOrStderr(), "several JSON values: use --lines for an event a line")
	}
	return err
}

// readPayload reads the payload of one event.
func readPayload(ctx context.Context, in io.Reader) ([]byte, error) {
	payload, err := readUntilDone(ctx, func() ([]byte, error) { return io.ReadAll(io.LimitReader(in, maxPayload+1)) })
	switch {
	case ctx.Err() != nil:
		return nil, errors.New("interrupted before standard input ended: nothing is published")
	case err != nil:
		return nil, fmt.Errorf("read standard input: %w", err)
	}
	if len(payload) > maxPayload {
		return nil, fmt.Errorf("standard input has more than %s: %w", size(int64(maxPayload)), jetbus.ErrPayloadTooLarge)
	}
	return payload, nil
}

// readPiped reads what another program writes, or a file, as the payload of one event. The line
// end that most of them put behind a text is no part of it.
func readPiped(ctx context.Context, in io.Reader, maybeText bool) ([]byte, error) {
	payload, err := readPayload(ctx, in)
	if err != nil {
		return nil, err
	}
	if maybeText && utf8.Valid(payload) {
		payload = withoutLineEnd(payload)
	}
	if len(payload) == 0 { // what was to write it may have failed
		return nil, usagef("standard input is empty: say '' for an event without a payload")
	}
	return payload, nil
}

// withoutLineEnd is a text without the line end behind it, if it has one.
func withoutLineEnd(text []byte) []byte {
	if line, ok := bytes.CutSuffix(text, []byte("\n")); ok {
		return bytes.TrimSuffix(line, []byte("\r"))
	}
	return text
}

// severalValues reports whether a text is JSON line by line, and not as a whole.
func severalValues(text []byte) bool {
	if json.Valid(text) {
		return false
	}
	values := 0
	for line := range bytes.Lines(text) {
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		if !json.Valid(line) {
			return false
		}
		values++
	}
	return values > 1
}

// event is the event without its payload, and the instructions for it.
func (o pubOptions) event(topic string, now time.Time) (e jetbus.Event, po jetbus.PublishOptions, err error) {
	e = jetbus.Event{Topic: topic, Key: o.key, ID: o.id, Tags: o.tags, Headers: map[string]string{}}
	for _, h := range o.headers {
		name, value, ok := strings.Cut(h, "=")
		if !ok {
			return e, po, usagef("--header %q: use x-name=value", h)
		}
		if _, twice := e.Headers[name]; twice {
			return e, po, usagef("--header %s is given twice, and an event has one value of each header", name)
		}
		e.Headers[name] = value
	}
	if o.contentType != "" {
		if _, twice := e.Headers[jetbus.HeaderContentType]; twice {
			return e, po, usagef("--header %s with --content-type: choose one", jetbus.HeaderContentType)
		}
		e.Headers[jetbus.HeaderContentType] = o.contentType
	}
	po.TTL = o.ttl
	if o.at != "" {
		if po.DeliverAt, err = parseTime(o.at, now.Add); err != nil {
			return e, po, usagef("--at: %w", err)
		}
	}
	if o.output != "text" && o.output != "json" {
		return e, po, usagef("--output %q: use text or json", o.output)
	}
	return e, po, nil
}

// setContentType says what a payload is that is not the default, JSON.
func setContentType(e *jetbus.Event) {
	if e.Headers[jetbus.HeaderContentType] != "" || len(e.Payload) == 0 || json.Valid(e.Payload) {
		return
	}
	e.Headers[jetbus.HeaderContentType] = "application/octet-stream"
	if utf8.Valid(e.Payload) {
		e.Headers[jetbus.HeaderContentType] = "text/plain; charset=utf-8"
	}
}

// publishing publishes and says what is stored.
type publishing struct {
	out   io.Writer
	json  bool
	lines bool

	stored, duplicates int
	last               jetbus.Event
}

func (p *publishing) publishTimes(ctx context.Context, bus jetbus.Publisher, e jetbus.Event, o jetbus.PublishOptions, times int) error {
	for left := times - 1; left >= 0; left-- {
		r, err := bus.Publish(ctx, e, o)
		if err == nil {
			err = p.say(r)
		}
		switch {
		case isUnread(err) && left == 0: // all is stored
			return err
		case err != nil:
			return p.failed(err)
		}
	}
	return nil
}

// failed is the error of a publish after which some events may be stored.
func (p *publishing) failed(err error) error {
	if p.stored == 0 {
		return err
	}
	return &partialError{fmt.Errorf("%s stored, then: %w", plural(p.stored, "event"), err)}
}

// say prints one receipt; of lines only a summary is printed, unless it is for programs.
func (p *publishing) say(r jetbus.Receipt) error {
	p.stored++
	if r.Duplicate {
		p.duplicates++
	}
	p.last = r.Event
	if p.json {
		line, err := jsonLine(struct {
			Topic     string `json:"topic"`
			ID        string `json:"id"`
			Seq       uint64 `json:"seq,omitempty"`
			Duplicate bool   `json:"duplicate,omitempty"`
			Scheduled bool   `json:"scheduled,omitempty"`
		}{r.Event.Topic, r.Event.ID, r.Event.Seq, r.Duplicate, r.Scheduled})
		if err != nil {
			return err
		}
		_, err = p.out.Write(line)
		return err
	}
	if p.lines {
		return nil
	}
	state := fmt.Sprintf("#%d", r.Event.Seq)
	switch {
	case r.Scheduled:
		state = "scheduled"
	case r.Duplicate:
		state += " duplicate, nothing stored"
	}
	_, err := fmt.Fprintf(p.out, "%s %s id=%s\n", r.Event.Topic, state, printable(r.Event.ID))
	return err
}

// publishLines publishes an event for each line.
func (p *publishing) publishLines(ctx context.Context, bus jetbus.Batcher, e jetbus.Event, in io.Reader, onlyJSON bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lines := startBatches(ctx, in, linesBatch, !onlyJSON)
	for more := true; more; {
		read := lines.next(ctx)
		events, err := eventsOf(e, read.lines, onlyJSON)
		if err == nil {
			err = read.err
		}
		switch failed := p.publishBatch(ctx, bus, events); {
		case isUnread(failed) && errors.Is(err, io.EOF): // all is stored
			return failed
		case failed != nil:
			return p.failed(failed)
		}
		switch {
		case errors.Is(err, io.EOF):
			more = false
		case err != nil:
			return p.failed(err)
		}
	}
	if p.json {
		return nil
	}
	text := plural(p.stored, "event") + " stored in " + e.Topic
	if p.stored > 0 {
		text += fmt.Sprintf(", the last is #%d", p.last.Seq)
	}
	_, err := fmt.Fprintln(p.out, text)
	return err
}

// byteOrderMark is the UTF-8 byte order mark, which some programs write at the beginning of a text.
var byteOrderMark = []byte("\xef\xbb\xbf")

// eventsOf makes an event of each line. It stops with an error at a line that is not valid, and returns
// the events before it.
func eventsOf(e jetbus.Event, lines []line, onlyJSON bool) ([]jetbus.Event, error) {
	events := make([]jetbus.Event, 0, len(lines))
	for _, l := range lines {
		if onlyJSON && bytes.HasPrefix(l.text, byteOrderMark) {
			return events, fmt.Errorf("line %d begins with a byte order mark, which JSON does not allow; remove it", l.number)
		}
		if onlyJSON && !json.Valid(l.text) {
			return events, fmt.Errorf("line %d is not JSON; correct it, or say what the lines are with --content-type", l.number)
		}
		event := e
		event.ID, event.Payload = jetbus.NewID(), l.text
		events = append(events, event)
	}
	return events, nil
}

func (p *publishing) publishBatch(ctx context.Context, bus jetbus.Batcher, batch []jetbus.Event) error {
	if len(batch) == 0 {
		return nil
	}
	receipts, err := bus.PublishBatch(ctx, batch, jetbus.BatchOptions{})
	for _, r := range receipts {
		if r.Event.Seq == 0 { // not acknowledged
			continue
		}
		if unsaid := p.say(r); err == nil { // all are counted
			err = unsaid
		}
	}
	return err
}
