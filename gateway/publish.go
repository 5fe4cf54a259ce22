package gateway

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/seed-63e9a637/jetbus"
	"github.com/seed-63e9a637/jetbus/gateway/internal/budget"
	"github.com/seed-63e9a637/jetbus/internal/caller"
	"github.com/seed-63e9a637/jetbus/internal/frame"
)

// Bounds of what a connection has sent to be published and has no answer for yet. Beyond
// them its next frame waits.
const (
	maxPublishes = 256
	maxTogether  = 64 // that are published as one batch
)

// publishing is what a connection publishes: in order, several at a time where they come
// faster than the broker answers.
type publishing struct {
	room chan struct{} // signaled when a publish is answered; capacity 1

	mu      sync.Mutex
	queue   []publishJob
	count   int // queued or under way
	bytes   int
	running bool
}

// publishJob is one PUBLISH frame, or one PUBLISH_BATCH.
type publishJob struct {
	corr  string
	bytes int
	event jetbus.Event
	o     jetbus.PublishOptions
	plain bool      // without options, for the first time: it may be published together with others
	first time.Time // when it was sent first, if it may be stored already; zero: it is not
	batch []jetbus.Event
	bad   []error // of the batch: why an event is not published; nil where it is
	how   jetbus.BatchOptions
}

// mayPublish reports why the connection may not publish an event.
func (c *conn) mayPublish(e *jetbus.Event) error {
	if err := jetbus.ValidTopic(e.Topic); err != nil {
		return err
	}
	if !c.principal().Scopes.Allow(TopicWrite, e.Topic) {
		return forbidden(TopicWrite, e.Topic)
	}
	return e.Validate()
}

// publish handles a PUBLISH frame.
func (c *conn) publish(req frame.Request) {
	item := req.Item()
	e, o, err := item.Event()
	if err != nil {
		c.refusePublish(req.Corr, frameFailure(err))
		return
	}
	if err = c.mayPublish(&e); err == nil {
		err = o.Validate()
	}
	if err == nil && c.g.isDraining() {
		err = refuse(CodeDraining, "the gateway stops; use another one")
	}
	if err != nil {
		c.refusePublish(req.Corr, err)
		return
	}
	if e.ID == "" {
		e.ID = jetbus.NewID() // so that it can be published again
	}
	first := firstSent(&req)
	c.enqueue(publishJob{
		corr: req.Corr, bytes: len(e.Payload) + len(req.Opts), event: e, o: o, first: first,
		plain: first.IsZero() && o.ExpectLastSeq == nil && o.TTL == 0 && o.DeliverAt.IsZero(),
	})
}

// refusePublish answers a PUBLISH that failed. The first clients know one code for that.
func (c *conn) refusePublish(corr string, err error) {
	if c.sketch {
		f := c.explain(err)
		err = &failure{Code: CodePublishFailed, Msg: f.Msg}
	}
	c.refuse(corr, err)
}

// publishBatch handles a PUBLISH_BATCH frame.
func (c *conn) publishBatch(req frame.Request) {
	most := c.g.c.Limits.BatchEvents
	switch n := len(req.Events); {
	case n == 0:
		c.refuse(req.Corr, refuse(CodeBadRequest, "the batch has no events"))
		return
	case n > most:
		c.refuse(req.Corr, refuse(CodeTooLarge, "the batch has %d events, at most %d are allowed", n, most))
		return
	case c.g.isDraining():
		c.refuse(req.Corr, refuse(CodeDraining, "the gateway stops; use another one"))
		return
	}
	job := publishJob{corr: req.Corr, first: firstSent(&req), batch: make([]jetbus.Event, len(req.Events)), bad: make([]error, len(req.Events))}
	job.how = jetbus.BatchOptions{Atomic: req.Atomic, Chain: req.Chain}
	each, asks := make([]jetbus.PublishOptions, len(req.Events)), false
	for i := range req.Events {
		item := &req.Events[i]
		e, o, err := item.Event()
		job.bytes += len(e.Payload) + len(item.Opts)
		switch {
		case err != nil:
			err = frameFailure(err)
		case !o.DeliverAt.IsZero():
			err = refuse(CodeUnsupported, "deliverAt is for PUBLISH")
		case o.ExpectLastSeq != nil && req.Chain != nil:
			err = refuse(CodeBadRequest, "expect in a chained batch: its events expect each other")
		default:
			if err = c.mayPublish(&e); err == nil {
				err = o.Validate()
			}
		}
		if err != nil && (req.Atomic || req.Chain != nil) { // nothing may be left out
			c.refuse(req.Corr, err)
			return
		}
		if e.ID == "" {
			e.ID = jetbus.NewID()
		}
		job.batch[i], job.bad[i], each[i] = e, err, o
		asks = asks || o != (jetbus.PublishOptions{})
	}
	if asks {
		job.how.Each = each
	}
	c.enqueue(job)
}

// enqueue adds a job to the queue of the connection. It waits while the queue is full or the budget has no room.
func (c *conn) enqueue(j publishJob) {
	p := &c.pub
	if j.bytes <= smallBytes {
		c.account.Add(budget.Bytes, int64(j.bytes))
	} else if c.account.Acquire(c.ctx, budget.Bytes, int64(j.bytes)) != nil {
		return // the connection has ended
	}
	for {
		p.mu.Lock()
		if p.count == 0 || p.count < maxPublishes && p.bytes+j.bytes <= c.g.c.Limits.QueueBytes {
			break
		}
		p.mu.Unlock()
		select {
		case <-p.room:
		case <-c.ended:
			return
		}
	}
	defer p.mu.Unlock()
	p.queue = append(p.queue, j)
	p.count++
	p.bytes += j.bytes
	if !p.running {
		p.running = true
		c.work.Go(c.publishAll)
	}
}

// publishAll does what there is to do.
func (c *conn) publishAll() {
	p := &c.pub
	for {
		jobs := c.nextJobs()
		if len(jobs) == 0 {
			return
		}
		switch {
		case jobs[0].batch != nil:
			c.publishMany(&jobs[0])
		case len(jobs) == 1:
			c.publishOne(&jobs[0])
		default:
			c.publishTogether(jobs)
		}
		p.mu.Lock()
		for _, j := range jobs {
			p.count--
			p.bytes -= j.bytes
			c.account.Release(budget.Bytes, int64(j.bytes))
		}
		p.mu.Unlock()
		signal(p.room)
	}
}

// nextJobs takes the next job, or several that can be published together.
func (c *conn) nextJobs() []publishJob {
	p := &c.pub
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) == 0 || c.isOver() {
		p.queue, p.running = nil, false
		return nil
	}
	n := 1
	for n < len(p.queue) && n < maxTogether && p.queue[0].plain && p.queue[n].plain {
		n++
	}
	jobs := p.queue[:n:n]
	p.queue = p.queue[n:]
	return jobs
}

func (c *conn) publishOne(j *publishJob) {
	ctx, cancel := context.WithTimeout(caller.With(c.ctx, c.principal().Subject), taskTime)
	defer cancel()
	ctx, release, err := c.whileKnown(ctx, j)
	defer release()
	var receipt jetbus.Receipt
	if err == nil {
		receipt, err = c.g.b.Publish(ctx, j.event, j.o)
	}
	c.published(j.corr, receipt, err)
}

// published answers a PUBLISH.
func (c *conn) published(corr string, receipt jetbus.Receipt, err error) {
	if err != nil {
		c.refusePublish(corr, withStored(err))
		return
	}
	e := &receipt.Event
	ts := e.Time.UnixMilli()
	m := frame.Message{Corr: corr, ID: e.ID, Seq: e.Seq, TS: &ts, SID: e.SID, Duplicate: receipt.Duplicate, Scheduled: receipt.Scheduled}
	if e.Partition >= 0 {
		m.Partition = &e.Partition
	}
	c.ok(m)
}

// withStored adds to a failed publish whether the event may be stored all the same.
func withStored(err error) error {
	var p *jetbus.PublishError
	if !errors.As(err, &p) {
		return err
	}
	f := *explain(err)
	if f.Details == nil {
		f.Details = map[string]any{"id": p.Event.ID, "stored": p.Stored.String()}
	}
	return &f
}

// publishTogether publishes events as one batch, in their order. Where it is refused before
// any is sent they are published one by one, so that each gets its own answer. What of a
// batch that was sent is not stored is not sent again: a later event of its key may be
// stored, and whether it may follow that is the client's to say.
func (c *conn) publishTogether(jobs []publishJob) {
	ctx, cancel := context.WithTimeout(caller.With(c.ctx, c.principal().Subject), taskTime)
	defer cancel()
	events := make([]jetbus.Event, len(jobs))
	for i := range jobs {
		events[i] = jobs[i].event
	}
	receipts, err := c.g.b.PublishBatch(ctx, events, jetbus.BatchOptions{})
	failed := failures(err)
	_, sent := errors.AsType[*jetbus.BatchError](err)
	for i := range jobs {
		switch {
		case err == nil || i < len(receipts) && receipts[i].Event.Seq != 0:
			c.published(jobs[i].corr, receipts[i], nil)
		case !sent:
			c.publishOne(&jobs[i])
		default:
			c.published(jobs[i].corr, jetbus.Receipt{}, cmp.Or(failed[events[i].ID], err))
		}
	}
}

// publishMany answers a PUBLISH_BATCH, with one result an event.
func (c *conn) publishMany(j *publishJob) {
	ctx, cancel := context.WithTimeout(caller.With(c.ctx, c.principal().Subject), taskTime)
	defer cancel()
	var events []jetbus.Event
	how := j.how
	how.Each = nil
	for i, e := range j.batch {
		if j.bad[i] != nil {
			continue
		}
		events = append(events, e)
		if len(j.how.Each) > 0 {
			how.Each = append(how.Each, j.how.Each[i])
		}
	}
	var receipts []jetbus.Receipt
	ctx, release, err := c.whileKnown(ctx, j)
	defer release()
	if err == nil && len(events) > 0 {
		receipts, err = c.g.b.PublishBatch(ctx, events, how)
	}
	if err != nil && j.how.Atomic {
		c.refuse(j.corr, withStored(err))
		return
	}
	failed := failures(err)
	results := make([]frame.Result, len(j.batch))
	next := 0
	for i, e := range j.batch {
		why := j.bad[i]
		if why == nil {
			if next < len(receipts) && receipts[next].Event.Seq != 0 {
				results[i] = resultOf(receipts[next])
				next++
				continue
			}
			next++
			if why = failed[e.ID]; why == nil {
				why = err
			}
		}
		f := errorFrame("", c.explain(why))
		results[i] = frame.Result{ID: e.ID, Code: f.Code, Msg: f.Msg, Retryable: f.Retryable, Details: f.Details, Stored: storedOf(why)}
	}
	c.ok(frame.Message{Corr: j.corr, Results: results})
}

// failures are the errors of a batch by the ids of their events.
func failures(err error) map[string]error {
	out := map[string]error{}
	if b, ok := errors.AsType[*jetbus.BatchError](err); ok {
		for _, p := range b.Failed {
			out[p.Event.ID] = p
		}
	}
	return out
}

func storedOf(err error) string {
	if p, ok := errors.AsType[*jetbus.PublishError](err); ok {
		return p.Stored.String()
	}
	return jetbus.StoredNo.String()
}

func resultOf(r jetbus.Receipt) frame.Result {
	ts := r.Event.Time.UnixMilli()
	out := frame.Result{ID: r.Event.ID, Seq: r.Event.Seq, TS: &ts, SID: r.Event.SID, Duplicate: r.Duplicate}
	if r.Event.Partition >= 0 {
		out.Partition = &r.Event.Partition
	}
	return out
}
