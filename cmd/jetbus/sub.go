package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
)

// subOptions are the flags of sub.
type subOptions struct {
	group, from, output string
	filters             []string
	limit               int
	noFollow            bool
}

func newSub(a *app) *cobra.Command {
	var o subOptions
	cmd := &cobra.Command{
		Use:   "sub TOPIC...",
		Short: "Print the events of topics as they come",
		Long: `Prints events, one a line.

Without --group it only reads: nothing changes at the server. It begins with the
events that come from now on, or with --no-follow at the oldest one and ends at
the last; --from says otherwise:

  latest       events stored from now on
  earliest     every event the topic still has
  ts=TIME      events stored since then: RFC 3339, epoch milliseconds, or a time ago (ts=10m)
  seq=N        the event with that sequence, and on
  after=ID     behind the event with that id

With --group it joins a group: members of a group share the events, an event that
was printed is acknowledged, and a group that exists goes on where it was.

Characters that a terminal would not print but obey are shown as escapes.`,
		Example: `  jetbus sub process.state
  jetbus sub orders.created orders.paid --from ts=1h -o json | jq .payload
  jetbus sub process.state --no-follow --filter prefix=web1: --limit 10
  jetbus sub orders.created --group auditors --from earliest`,
		Args: between(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.sub(cmd, o, args) },
	}
	f := cmd.Flags()
	f.StringVar(&o.group, "group", "", "join this group and acknowledge what is printed")
	f.StringVar(&o.from, "from", "", "where to begin (default latest, with --no-follow earliest)")
	f.StringArrayVar(&o.filters, "filter", nil, "only events with key=K, prefix=P (of the key), x-name=VALUE or header.NAME=VALUE; may be repeated")
	f.StringVarP(&o.output, "output", "o", "text", "text or json")
	f.Var((*limitFlag)(&o.limit), "limit", "end after that many events (default never)")
	f.BoolVar(&o.noFollow, "no-follow", false, "end with the last event there is")
	return cmd
}

func (a *app) sub(cmd *cobra.Command, o subOptions, topics []string) error {
	from := o.from
	if from == "" {
		from = "latest"
		if o.noFollow {
			from = "earliest"
		}
	}
	start, err := parseStart(from, time.Now())
	if err != nil {
		return err
	}
	filter, err := parseFilter(o.filters)
	switch {
	case err != nil:
		return err
	case o.output != "text" && o.output != "json":
		return usagef("--output %q: use text or json", o.output)
	}
	p := newPrinter(cmd.OutOrStdout(), o.output == "json", o.limit)
	return untilInterrupted(cmd.Context(), func(open func()) error {
		return a.withBus(cmd.Context(), func(bus *adapter.Bus) error {
			open()
			// A quiet topic looks like a command that hangs; of one that is not there comes an error.
			if w, ok := terminalOf(cmd.ErrOrStderr()); ok && !o.noFollow && areThere(cmd.Context(), bus, topics) {
				if _, err := fmt.Fprintln(w, listening(topics, o.group, from)); err != nil {
					return err
				}
			}
			switch {
			case o.group == "":
				err = p.read(cmd.Context(), bus, topics, jetbus.ReadOptions{From: start, Follow: !o.noFollow, Filter: filter})
			case o.noFollow:
				err = p.drain(cmd.Context(), bus, topics, o.group, start, filter)
			default:
				err = p.join(cmd.Context(), bus, topics, o.group, jetbus.SubscribeOptions{From: start, Topics: topics[1:], Filter: filter})
			}
			return errors.Join(err, p.flush())
		})
	})
}

// areThere reports whether all topics can be looked up.
func areThere(ctx context.Context, bus jetbus.Topics, topics []string) bool {
	return !slices.ContainsFunc(topics, func(topic string) bool {
		_, err := bus.TopicInfo(ctx, topic)
		return err != nil
	})
}

// listening says what a command waits for that has nothing to print yet.
func listening(topics []string, group, from string) string {
	text := "listening to " + strings.Join(topics, ", ")
	if group != "" {
		text += " as a member of " + group + ", which goes on where it was, or if it is new"
	}
	return printable(text + " from " + from + "; Ctrl-C ends it")
}

// printer prints events up to a limit.
type printer struct {
	mu      sync.Mutex
	out     *bufio.Writer
	json    bool
	limit   int // 0: none
	printed int
	err     error
}

func newPrinter(w io.Writer, asJSON bool, limit int) *printer {
	return &printer{out: bufio.NewWriter(w), json: asJSON, limit: limit}
}

// print prints one event. It returns false once there is nothing more to print:
// the limit is reached, or the output is gone.
func (p *printer) print(e *jetbus.Event) (more bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil || p.full() {
		return false, p.err
	}
	var line []byte
	if p.json {
		line, p.err = jsonLine(e)
	} else {
		line = []byte(eventLine(e))
	}
	if p.err == nil {
		_, p.err = p.out.Write(line)
	}
	if p.err != nil {
		return false, p.err
	}
	p.printed++
	return !p.full(), nil
}

func (p *printer) full() bool { return p.limit > 0 && p.printed >= p.limit }

func (p *printer) flush() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = p.out.Flush()
	}
	return p.err
}

// read prints what a reader without a group gets.
func (p *printer) read(ctx context.Context, bus jetbus.Reader, topics []string, o jetbus.ReadOptions) error {
	for e, err := range bus.Read(ctx, topics, o) {
		if ctx.Err() != nil { // the user has seen enough
			return nil
		}
		if err != nil {
			return err
		}
		more, err := p.print(&e)
		if err != nil || !more {
			return err
		}
		if o.Follow { // nobody knows when the next one comes
			if err := p.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// join prints and acknowledges what a member of a group gets, until ctx ends or the limit is reached.
func (p *printer) join(ctx context.Context, bus jetbus.Subscriber, topics []string, group string, o jetbus.SubscribeOptions) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sub, err := bus.Subscribe(ctx, topics[0], group, func(ctx context.Context, d *jetbus.Delivery) error {
		p.mu.Lock()
		full := p.full()
		p.mu.Unlock()
		if full {
			return d.GiveBack(ctx)
		}
		more, err := p.print(&d.Event)
		if err == nil {
			err = p.flush() // before it is acknowledged
		}
		if err != nil || !more {
			cancel()
		}
		if err != nil { // which is no fault of the event's
			return d.GiveBack(ctx)
		}
		return nil
	}, o)
	if err != nil {
		return err
	}
	<-sub.Done()
	return sub.Err()
}

// drain prints and acknowledges what a group has waiting, topic by topic.
func (p *printer) drain(ctx context.Context, bus jetbus.Receiver, topics []string, group string, from jetbus.Start, f jetbus.Filter) error {
	for _, topic := range topics {
		for {
			o := jetbus.ReceiveOptions{From: from, Wait: time.Second}
			if p.limit > 0 {
				o.Max = min(p.limit-p.printed, jetbus.DefaultBatchSize)
			}
			list, err := bus.Receive(ctx, topic, group, o)
			if err != nil {
				if ctx.Err() != nil {
					return nil //nolint:nilerr // the user has seen enough
				}
				return err
			}
			more, err := p.settle(ctx, list, f)
			if err != nil || !more {
				return err
			}
			if len(list) == 0 {
				break
			}
		}
	}
	return nil
}

// settleTimeout is how long what is printed may take to be acknowledged, and the rest to be
// given back, once the command is interrupted.
const settleTimeout = 10 * time.Second

// outlast returns a context that ends that long after ctx, or with the function.
func outlast(ctx context.Context) (context.Context, func()) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(settleTimeout)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel()
		case <-longer.Done():
		}
	})
	return longer, func() {
		stop()
		cancel()
	}
}

// settle prints deliveries and acknowledges them. The rest is given back when there is no more to print.
func (p *printer) settle(ctx context.Context, list []*jetbus.Delivery, f jetbus.Filter) (more bool, err error) {
	interrupted := ctx.Done()
	ctx, end := outlast(ctx)
	defer end()
	more = true
	for len(list) > 0 && more && err == nil {
		select {
		case <-interrupted:
			more = false
			continue
		default:
		}
		d := list[0]
		if f.Match(&d.Event) {
			if more, err = p.print(&d.Event); err == nil {
				err = p.flush()
			}
		}
		if err == nil {
			list, err = list[1:], d.Ack(ctx)
		}
	}
	for _, rest := range list {
		err = errors.Join(err, rest.GiveBack(ctx))
	}
	return more && err == nil, err
}
