package registry

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-63e9a637/jetbus"
)

// backfillBucket keeps the positions of backfills.
const backfillBucket = "JETBUS_BACKFILLS"

// backfillLockTTL is how long a run that was killed keeps others waiting.
const backfillLockTTL = 5 * time.Second

// backfillRecord is what is kept of a backfill: what it was told when it began, and
// how far it is.
type backfillRecord struct {
	From        string    `json:"from"`
	FromCreated time.Time `json:"fromCreated"` // of its stream: sequences are of that
	To          string    `json:"to"`
	ToCreated   time.Time `json:"toCreated"`
	Since       time.Time `json:"since,omitzero"`
	Until       time.Time `json:"until,omitzero"`
	Version     int       `json:"version"`   // of From's schema; 0: it had none
	ToVersion   int       `json:"toVersion"` // of To's schema; 0: it had none
	// Target is a position of To: all that the backfill wrote up to there is in Stats.
	// What it wrote behind that is found there.
	Target uint64 `json:"target"`
	// Source is the last event of From that was read. A position alone would not do: a broker that is restored to
	// an earlier state gives it to another event.
	Source jetbus.Checkpoint `json:"source,omitzero"`
	Stats  BackfillStats     `json:"stats"`
}

// begin reads what is known of the backfill, or makes that of a new one.
func (f *backfill) begin(ctx context.Context) error {
	from, err := f.topic(ctx, f.From)
	if err != nil {
		return err
	}
	to, err := f.topic(ctx, f.To)
	if err != nil {
		return err
	}
	for _, info := range []jetbus.TopicInfo{from, to} {
		if info.Config.SnapshotOf != "" {
			return fmt.Errorf("%w: %s is kept by the broker as the snapshot of %s: use that, or a topic declared with Compact",
				jetbus.ErrUnsupported, info.Config.Name, info.Config.SnapshotOf)
		}
	}
	f.compact = to.Config.Compact
	if f.keepsState, err = f.hasState(ctx, to); err != nil {
		return err
	}
	f.tag = f.Name + "@" + strconv.FormatInt(from.Created.UnixMilli(), 36)
	entry, err := f.b.KeyGet(ctx, backfillBucket, f.Name)
	if err != nil {
		return err
	}
	f.revision = entry.Revision
	if entry.Revision > 0 {
		if err := json.Unmarshal(entry.Value, &f.rec); err != nil {
			return fmt.Errorf("position in bucket %s: %w: %w", backfillBucket, ErrUnreadable, err)
		}
		f.resumed = true
		err := f.same(from, to)
		if err == nil {
			if err = f.rec.Source.Verify(ctx, f.b, f.From); errors.Is(err, jetbus.ErrPositionUnknown) {
				err = fmt.Errorf("%w: %w", ErrBackfillDiffers, err)
			}
		}
		if err != nil {
			f.rec = backfillRecord{} // of something else
			return err
		}
		if s := &f.rec.Stats; f.DryRun { // it counts for itself
			*s = BackfillStats{Seq: s.Seq, Last: s.Last, Finished: s.Finished}
		}
		return nil
	}
	if f.rec, err = f.first(ctx, from, to); err != nil {
		return err
	}
	return f.save(ctx)
}

// topic describes one of both topics. That there is none is said of the topic, and not of the
// question for it.
func (f *backfill) topic(ctx context.Context, name string) (jetbus.TopicInfo, error) {
	info, err := f.b.TopicInfo(ctx, name)
	if r, ok := errors.AsType[*jetbus.RemedyError](err); ok && errors.Is(r, jetbus.ErrNoTopic) {
		err = fmt.Errorf("topic %s: %w", name, r)
	}
	return info, err
}

// hasState reports whether a tombstone deletes something in a topic.
func (f *backfill) hasState(ctx context.Context, to jetbus.TopicInfo) (bool, error) {
	if to.Config.Compact {
		return true, nil
	}
	all, err := f.b.ListTopics(ctx)
	return slices.ContainsFunc(all, func(i jetbus.TopicInfo) bool { return i.Config.SnapshotOf == f.To }), err
}

// first makes the record of a backfill that begins.
func (f *backfill) first(ctx context.Context, from, to jetbus.TopicInfo) (backfillRecord, error) {
	rec := backfillRecord{
		From: f.From, FromCreated: from.Created.UTC(), To: f.To, ToCreated: to.Created.UTC(), Since: f.Since.UTC(), Until: f.Until.UTC(),
		Target: to.LastSeq, Stats: BackfillStats{Last: from.LastSeq},
	}
	source, err := wanted(ctx, f.r, f.From, f.Version)
	if err == nil {
		rec.Version = source.version
		var own target
		own, err = wanted(ctx, f.r, f.To, 0)
		rec.ToVersion = own.version
	}
	if err != nil {
		return rec, err
	}
	if rec.Version == 0 && len(f.Upcasters[f.From]) > 0 {
		return rec, fmt.Errorf("upcasters of %s: %w", f.From, ErrNoSchema)
	}
	if !f.Until.IsZero() {
		next, err := f.firstAt(ctx, f.Until, rec.Stats.Last+1)
		if err != nil {
			return rec, err
		}
		rec.Stats.Last = next - 1
	}
	if !f.Since.IsZero() {
		next, err := f.firstAt(ctx, f.Since, rec.Stats.Last+1)
		if err != nil {
			return rec, err
		}
		rec.Stats.Seq = next - 1
	}
	return rec, nil
}

// firstAt returns the position of the first event that was stored at or after a
// time, or none where there is no such event.
func (f *backfill) firstAt(ctx context.Context, at time.Time, none uint64) (uint64, error) {
	for e, err := range f.b.Scan(ctx, f.From, jetbus.ScanQuery{From: jetbus.AtTime(at), Limit: 1}) {
		return min(e.Seq, none), err
	}
	return none, nil
}

// same checks that the record is of this backfill, and that what it says of
// positions still holds.
func (f *backfill) same(from, to jetbus.TopicInfo) error {
	var all []string
	differs := func(field, have, want string) {
		if have != want {
			all = append(all, fmt.Sprintf("%s was %s and is %s", field, have, want))
		}
	}
	moment := func(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
	differs("From", f.rec.From, f.From)
	differs("To", f.rec.To, f.To)
	differs("Since", moment(f.rec.Since), moment(f.Since))
	differs("Until", moment(f.rec.Until), moment(f.Until))
	if f.Version != 0 {
		differs("Version", strconv.Itoa(f.rec.Version), strconv.Itoa(f.Version))
	}
	if f.rec.From == f.From && f.rec.To == f.To {
		differs("the creation of "+f.From, moment(f.rec.FromCreated), moment(from.Created))
		differs("the creation of "+f.To, moment(f.rec.ToCreated), moment(to.Created))
	}
	if len(all) > 0 {
		return fmt.Errorf("%w: %s", ErrBackfillDiffers, strings.Join(all, ", "))
	}
	return nil
}

// save stores the record, unless it is a dry run.
func (f *backfill) save(ctx context.Context) error {
	if f.DryRun {
		return nil
	}
	value, err := json.Marshal(f.rec)
	if err != nil {
		return err
	}
	revision, err := f.b.KeySet(ctx, backfillBucket, f.Name, value, f.revision, 0)
	if errors.Is(err, jetbus.ErrWrongSequence) {
		return fmt.Errorf("another process works on it: %w", err)
	}
	if err == nil {
		f.revision = revision
	}
	return err
}

// eventID is the ID of what is written for an event: the same in every run.
func (f *backfill) eventID(seq uint64) string {
	return shortID(f.tag + "\x00" + f.place(seq))
}

// place names an event of From.
func (f *backfill) place(seq uint64) string { return f.From + "/" + strconv.FormatUint(seq, 10) }

// shortID makes an ID of any text.
func shortID(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "backfill-" + hex.EncodeToString(sum[:16])
}

// origin returns where an event of To comes from if a backfill of From wrote it;
// mine: this one did.
func (f *backfill) origin(e *jetbus.Event) (seq uint64, mine, ok bool) {
	digits, ok := strings.CutPrefix(e.Headers[HeaderBackfillOf], f.From+"/")
	if !ok {
		return 0, false, false
	}
	seq, err := strconv.ParseUint(digits, 10, 64)
	tag := e.Headers[HeaderBackfill]
	created := tag[strings.LastIndexByte(tag, '@')+1:]
	if err != nil || created != f.tag[strings.LastIndexByte(f.tag, '@')+1:] {
		return 0, false, false
	}
	return seq, tag == f.tag, true
}
