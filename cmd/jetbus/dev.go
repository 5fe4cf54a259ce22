package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/adapter"
	"github.com/seed-63e9a637/jetbus/embedded"
	"github.com/seed-63e9a637/jetbus/projector/processes"
)

const (
	// drainTimeout is how long dev waits at its end for clients of the gateway to settle
	// what they hold, and then for heartbeats to be projected.
	drainTimeout = 5 * time.Second
	viewEvery    = time.Second
)

// devSnapshot is the last state of each process.
var devSnapshot = jetbus.SnapshotTopic(processes.DefaultStates)

// devTopics are what dev declares: an hour of heartbeats, states and changes, bounded in
// size as well, the states more tightly, since the projector reads them all when it
// starts; and a day of the last states. The changes have a stream of their own, in which
// the feed finds its position.
var devTopics = []jetbus.TopicConfig{
	{
		Name: processes.DefaultHeartbeats, Description: "heartbeats of this machine's processes, by jetbus dev",
		Retention: time.Hour, MaxBytes: 512 << 20,
	},
	{
		Name: processes.DefaultStates, Description: "what the heartbeats say of each process, by jetbus dev",
		Retention: time.Hour, MaxBytes: 128 << 20, KeyInSubject: true,
	},
	{
		Name: devSnapshot, Description: "the last state of each process, by jetbus dev",
		SnapshotOf: processes.DefaultStates, Retention: 24 * time.Hour, Discard: jetbus.DiscardOld,
	},
	{
		Name: devChanged, Description: "what changes in the collection of processes, by jetbus dev",
		Retention: time.Hour, MaxBytes: 128 << 20, Discard: jetbus.DiscardOld,
	},
}

// devOptions are the flags of dev.
type devOptions struct {
	dir, listen string
	gateway     string
	metrics     string
	mongo       string
	interval    time.Duration
	plain       bool
	runFor      time.Duration
	again       string // how to start anew, for the end
}

func newDev(a *app) *cobra.Command {
	var o devOptions
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run a broker on this machine, with real events in it, and watch",
		Long: `Runs everything with nothing installed: a NATS server with JetStream in this process,
heartbeats of this machine's processes in the topic heartbeat.received, and the projector
that makes the state of each process of them, in the topic process.state and its snapshot,
and the collection processes of a MongoDB, which has a document for each process. A change
feed follows that collection, and publishes each change in the topic processes.changed.
Each topic has a schema: what does not follow it is refused, or becomes a dead letter. Any
NATS client on this machine can join, and through the gateway whatever speaks WebSocket or
HTTP.

The MongoDB is a stand-in in this process, unless --mongo names a real one: any driver can
use it, and it keeps nothing. It is filled again from the snapshot when it starts, and
processes.changed goes on with an event "gap" and a copy of all documents. With --mongo it
goes on where it was, and begins anew where that is another MongoDB than before. With
--metrics it serves Prometheus, as jetbus serve does, and tells of the projection and the
feed as well.

A process is alive while it beats and stale after 15 seconds without a beat. At most the
200 busiest processes beat, so one that falls behind in a crowd may turn stale although it
runs. Topics keep an hour of events, the heartbeats at most 512 MiB, the states and the
changes 128 MiB each, and the snapshot a day.

On a terminal it shows topics and processes, redrawn in place; elsewhere, and with --plain,
it prints a line a second. Ctrl-C ends it in order, a second Ctrl-C at once. Started again
it goes on where it was.`,
		Example: `  jetbus dev
  jetbus dev --plain --for 30s
  jetbus dev --dir ./dev-store --listen 4333
  jetbus dev --mongo mongodb://127.0.0.1:27017/?replicaSet=rs0`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return untilInterrupted(cmd.Context(), func(open func()) error { return a.dev(cmd, o, open) })
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.dir, "dir", "", "folder of the store (default jetbus/dev in the user's cache folder)")
	f.StringVar(&o.listen, "listen", "", "address for NATS clients, host:port or port, 0 for a free one (default 127.0.0.1:4222 if free, else a free one)")
	f.StringVar(&o.gateway, "gateway", "", "address for WebSocket and HTTP, host:port or port of this machine, 0 for a free one (default "+devGateway+" if free, else a free one)")
	f.StringVar(&o.metrics, "metrics", "", "address for Prometheus, at /metrics, host:port or port (env JETBUS_METRICS; default none)")
	f.StringVar(&o.mongo, "mongo", "", "MongoDB for the collection processes, mongodb://host:port (default a stand-in in this process)")
	f.StringVar(&a.prefix, "prefix", defaultPrefix, "first token of the bus's subjects")
	f.DurationVar(&o.interval, "interval", time.Second, "time between the heartbeats of a process")
	f.BoolVar(&o.plain, "plain", false, "print lines instead of a screen")
	f.DurationVar(&o.runFor, "for", 0, "end this time after the start (default never)")
	return cmd
}

// dev runs until the context ends, --for is over or something fails.
func (a *app) dev(cmd *cobra.Command, o devOptions, open func()) (err error) {
	c, err := o.config(cmd.Context())
	if err != nil {
		return err
	}
	o.again = againLine(cmd)
	o.metrics = address(a.env(o.metrics, "JETBUS_METRICS"))
	d := &devRun{o: o, out: cmd.OutOrStdout(), started: time.Now(), prefix: a.prefix, mongo: devMongo{uri: o.mongo}}
	d.tty, d.live = terminalOf(d.out)
	d.live = d.live && !o.plain && a.getenv("TERM") != "dumb"
	d.log = slog.New(slog.NewTextHandler(&d.notes, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if !d.live {
		d.log = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	}
	if d.broker, err = embedded.Start(cmd.Context(), c); err != nil {
		return brokerError(err, c)
	}
	open()
	runErr := d.run(cmd.Context())
	stopErr := d.stop(context.WithoutCancel(cmd.Context()))
	if text := d.notes.String(); text != "" { // what could not be said while the screen was up
		fmt.Fprint(cmd.ErrOrStderr(), text)
	}
	return errors.Join(runErr, stopErr)
}

// config is the broker's configuration.
func (o devOptions) config(ctx context.Context) (embedded.Config, error) {
	c := embedded.Config{Dir: o.dir, Listen: address(o.listen)}
	switch {
	case o.interval < 100*time.Millisecond || o.interval > 10*time.Second:
		return c, usagef("--interval %v: use 100ms to 10s", o.interval)
	case o.runFor < 0:
		return c, usagef("--for %v: use more than 0", o.runFor)
	}
	if _, err := o.gatewayAddress(); err != nil {
		return c, err
	}
	if c.Dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return c, usagef("no cache folder (%w): name the folder of the store with --dir", err)
		}
		c.Dir = filepath.Join(cache, "jetbus", "dev")
	}
	if o.listen == "" {
		if c.Listen = strings.TrimPrefix(defaultServer, "nats://"); addressTaken(ctx, c.Listen) {
			c.Listen = "127.0.0.1:0"
		}
	}
	switch err := c.Validate(); {
	case errors.Is(err, embedded.ErrReachable):
		return c, usagef("--listen %s %w, and dev lets in whoever comes: listen on 127.0.0.1, or use jetbus serve, which takes credentials", o.listen, embedded.ErrReachable)
	case err != nil:
		return c, usagef("%s", inFlags(err))
	}
	return c, nil
}

// devRun is one run of dev.
type devRun struct {
	o       devOptions
	out     io.Writer
	tty     *os.File
	live    bool // on a terminal
	log     *slog.Logger
	notes   notes
	started time.Time
	prefix  string

	broker    *embedded.Broker
	nc        *nats.Conn
	bus       *adapter.Bus
	meter     *meter // nil: nobody asked for metrics
	edge      *edge  // the gateway
	projector *processes.Projector
	schemas   devSchemas
	mongo     devMongo
	feed      devFeed
	heart     *heart
	removed   map[string]bool // topics that somebody has removed, which was said
	beating   sync.WaitGroup
	quit      context.CancelFunc // ends the heart
}

// run starts everything and shows it until ctx ends or --for is over, which is no error.
func (d *devRun) run(ctx context.Context) error {
	err := d.start(ctx)
	if err == nil {
		var cancel context.CancelFunc
		ctx, cancel = endAfter(ctx, d.o.runFor)
		defer cancel()
		err = d.watch(ctx)
	}
	if ctx.Err() == nil {
		return err
	}
	return nil // whatever it was, it was the end
}

// start opens the bus, says what it found and sets heart and projector going.
func (d *devRun) start(ctx context.Context) (err error) {
	if d.nc, err = d.broker.Connect(nats.Name("jetbus dev")); err != nil {
		return err
	}
	if d.meter, err = startMeter(ctx, d.broker, d.prefix, d.o.metrics, nil, d.log); err != nil {
		return err
	}
	if d.bus, err = adapter.Open(ctx, d.nc, adapter.Config{Prefix: d.prefix, Logger: d.log, Observer: d.meter.observer()}); err != nil {
		return err
	}
	if err = d.schemas.open(ctx, d.nc, d.bus, d.meter.observer(), d.log); err != nil {
		return err
	}
	if err = d.feed.prepare(ctx, d.bus, d.o.mongo); err != nil {
		return err
	}
	if err = d.mongo.open(ctx, d); err != nil {
		return err
	}
	infos := make([]jetbus.TopicInfo, len(devTopics))
	for i, c := range devTopics {
		infos[i], err = d.bus.TopicInfo(ctx, c.Name)
		if errors.Is(err, jetbus.ErrNoTopic) { // one that is there stays as its user has it
			infos[i], err = d.bus.EnsureTopic(ctx, c)
		}
		if err != nil {
			return err
		}
	}
	if err = d.serve(ctx); err != nil {
		return err
	}
	found, err := d.found(ctx, infos)
	if err != nil {
		return err
	}
	for _, line := range append(d.intro(), found...) {
		if _, err := fmt.Fprintln(d.out, line); err != nil {
			return err
		}
	}
	return d.turn(ctx)
}

// turn starts what makes states of heartbeats, documents of states and changes of documents.
func (d *devRun) turn(ctx context.Context) error {
	s, err := newSampler()
	if err != nil {
		return err
	}
	// All but the heart drains at the end, when ctx is over.
	if d.projector, err = processes.Start(context.WithoutCancel(ctx), d.schemas.bus, processes.Options{Logger: d.log}); err != nil {
		return err
	}
	if err = d.mongo.start(context.WithoutCancel(ctx), d.schemas.bus, d); err != nil {
		return err
	}
	d.meter.watchProjection(devCollection, d.mongo.projection)
	// The projection has filled the collection anew by now, where it had to: the feed
	// would see the new one take the place of the old, and not its documents.
	d.feed.start(context.WithoutCancel(ctx), d.schemas.bus, &d.mongo, d.log)
	d.meter.watchFeed(devCollection, d.feed.feed)
	d.heart = &heart{bus: d.schemas.bus, sample: s.sample, interval: d.o.interval, log: d.log}
	beatCtx, quit := context.WithCancel(ctx)
	d.quit = quit
	d.beating.Go(func() { d.heart.run(beatCtx) })
	return nil
}

// intro says what runs where, and what to do with it.
func (d *devRun) intro() []string {
	url := d.broker.URL()
	lines := []string{"broker  " + url, "gateway " + d.edge.web.url, "store   " + d.broker.Dir(), d.mongo.intro()}
	lines = append(lines, tries(url, d.edge.web.url, d.prefix)...)
	if d.meter != nil {
		lines = slices.Insert(lines, 2, "metrics "+d.meter.url())
	}
	if d.o.listen == "" && url != defaultServer {
		lines[0] += "  (" + strings.TrimPrefix(defaultServer, "nats://") + " is taken)"
	}
	return lines
}

// tries are commands for a broker and its gateway, as they are typed.
func tries(url, gateway, prefix string) []string {
	command, flags := commandName(), ""
	if url != defaultServer {
		flags = " --server " + url
	}
	if prefix != defaultPrefix {
		flags += " --prefix " + quoted(prefix)
	}
	return []string{
		"try     " + command + " sub process.state" + flags,
		"        " + command + " sub " + devChanged + flags,
		"        " + command + " topics" + flags,
		"        nats sub '" + prefix + ".process.state.>' --server " + url,
		"        curl " + gateway + "/v1/topics/process.state/snapshot",
	}
}

// commandName is how to run this program again, from where it was run.
func commandName() string {
	if strings.Contains(os.Args[0], "go-build") && filepath.Base(os.Args[0]) == "jetbus" {
		if _, err := os.Stat(filepath.Join("cmd", "jetbus")); err == nil {
			return "go run ./cmd/jetbus"
		}
	}
	return "jetbus"
}

// found says what the store holds from before.
func (d *devRun) found(ctx context.Context, infos []jetbus.TopicInfo) ([]string, error) {
	var parts []string
	events := uint64(0)
	for _, info := range infos {
		events += info.LastSeq
		parts = append(parts, fmt.Sprintf("%s %s", info.Config.Name, plural(info.Events, "event")))
	}
	if events == 0 {
		return []string{"found   nothing: the store is new"}, nil
	}
	lines := []string{"found   " + strings.Join(parts, ", ")}
	if d.feed.gap {
		lines = append(lines, "feed    the stand-in forgot the collection: "+devChanged+" goes on with a gap and a copy")
	}
	groups, err := d.bus.Groups(ctx, processes.DefaultHeartbeats)
	if err != nil {
		return nil, err
	}
	for _, g := range groups {
		lines = append(lines, fmt.Sprintf("group   %s goes on behind #%d, %s waiting", g.Group, g.AckedSeq, plural(g.Pending+uint64(g.Held), "event"))) //nolint:gosec // a count is not negative
	}
	return lines, nil
}

// watch shows what happens until ctx ends or the projector does.
func (d *devRun) watch(ctx context.Context) error {
	show := func(p picture) error {
		_, err := fmt.Fprintln(d.out, p.line())
		return err
	}
	if d.live {
		s, err := newScreen(d.tty)
		defer s.leave()
		if err != nil {
			return err
		}
		show = func(p picture) error { return s.draw(p.screen(windowOf(d.tty))) }
	}
	ticker := time.NewTicker(viewEvery)
	defer ticker.Stop()
	var r rates
	var c collectionCount
	for {
		c = d.mongo.count(ctx, c)
		p, err := d.picture(ctx, &r)
		p.collection, p.feed = c, d.feed.look()
		if err == nil {
			err = show(p)
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-d.projector.Done():
			return d.projector.Err()
		case <-d.mongo.projection.Done():
			return d.mongo.projection.Err()
		case err := <-d.edge.web.ended:
			d.edge.web.ended <- err // close says it
			return nil
		case err := <-d.meter.server().end():
			d.meter.web.ended <- err
			return nil
		case <-ticker.C:
		}
	}
}

// picture asks the broker how things are.
func (d *devRun) picture(ctx context.Context, r *rates) (picture, error) {
	infos, err := d.infos(ctx)
	if err != nil {
		return picture{}, err
	}
	groups, err := d.bus.Groups(ctx, processes.DefaultHeartbeats)
	if err != nil && !errors.Is(err, jetbus.ErrNoTopic) {
		return picture{}, err
	}
	p := picture{
		head: append(d.intro(), fmt.Sprintf("up %v, Ctrl-C ends it", time.Since(d.started).Round(time.Second))),
		now:  time.Now(), processes: d.projector.Processes(),
	}
	p.topics = r.counts(infos, p.now)
	for _, g := range groups {
		if g.Group == processes.DefaultGroup {
			p.waiting = g.Pending
		}
	}
	return p, nil
}

// infos are of the topics that there are. That somebody has removed one is said once, and no
// reason to end: those who need it say so themselves.
func (d *devRun) infos(ctx context.Context) ([]jetbus.TopicInfo, error) {
	infos := make([]jetbus.TopicInfo, 0, len(devTopics))
	for _, c := range devTopics {
		info, err := d.bus.TopicInfo(ctx, c.Name)
		switch {
		case errors.Is(err, jetbus.ErrNoTopic):
			d.missing(ctx, c.Name)
		case err != nil:
			return nil, err
		default:
			infos = append(infos, info)
		}
	}
	return infos, nil
}

// missing says that a topic was removed, if that was not said yet.
func (d *devRun) missing(ctx context.Context, topic string) {
	if d.removed[topic] {
		return
	}
	if d.removed == nil {
		d.removed = map[string]bool{}
	}
	d.removed[topic] = true
	d.log.LogAttrs(ctx, slog.LevelWarn, "a topic was removed, the next start makes it anew", slog.String("topic", topic))
}
