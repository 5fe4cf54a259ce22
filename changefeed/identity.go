package changefeed

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
	"unicode"

	"github.com/seed-63e9a637/jetbus"
)

// A feed is known by its name. Two that go by one name and do different things would
// stand by for each other without end: each finds out by what the other one has
// stored, and by who has the lock.

// ownerMark is in the owner of a feed's lock, behind what it does.
const ownerMark = " #"

// maxOwner bounds what the owner says of the feed.
const maxOwner = 400

// source names what is watched.
func (f *Feed) source() string {
	if f.o.Collection == "" {
		return f.o.Database
	}
	return f.o.Database + "." + f.o.Collection
}

func (f *Feed) lockKey() string { return "changefeed/" + f.o.Name }

// owner says what the feed does.
func (f *Feed) owner() string {
	text := f.source() + " to " + f.o.Topic
	if len(text) > maxOwner || strings.ContainsFunc(text, unicode.IsControl) || strings.ToValidUTF8(text, "") != text {
		sum := sha256.Sum256([]byte(text))
		return hashedMark + hex.EncodeToString(sum[:])
	}
	return text
}

// ours refuses the position of a feed that watches something else, or publishes to
// another topic.
func (f *Feed) ours(p Progress) error {
	switch {
	case p.Source != "" && p.Source != f.source():
		return fmt.Errorf("%w: feed %s is at a position in %s, and now watches %s", ErrOtherSource, f.o.Name, p.Source, f.source())
	case p.Topic != "" && p.Topic != f.o.Topic:
		return fmt.Errorf("%w: feed %s is at a position in topic %s, and now publishes to %s", ErrOtherSource, f.o.Name, p.Topic, f.o.Topic)
	}
	return nil
}

// leads describes the source of the feed that holds the lock. ok is false if the lock is
// free, or if its holder is self or not a change feed.
func (f *Feed) leads(ctx context.Context, self string) (what string, ok bool, err error) {
	entry, err := f.b.KeyGet(ctx, jetbus.DefaultLockBucket, f.lockKey())
	var v struct{ State, Owner string }
	if err != nil || entry.Revision == 0 || json.Unmarshal(entry.Value, &v) != nil || v.State == "free" || v.Owner == self {
		return "", false, err
	}
	what, _, ok = strings.Cut(v.Owner, ownerMark)
	return what, ok, nil
}

// rival reports whether an instance other than self, which is an owner of the lock,
// holds it. The error wraps ErrOtherSource if that instance has another source or topic.
func (f *Feed) rival(ctx context.Context, self string) (held bool, err error) {
	theirs, held, err := f.leads(ctx, self)
	if err != nil || !held || theirs == f.owner() {
		return held, err
	}
	return true, fmt.Errorf("%w: an instance that goes by the name %s leads, from %s; this one is from %s", ErrOtherSource, f.o.Name, theirs, f.owner())
}

// checkName is what can be known of both before the feed runs.
func (f *Feed) checkName(ctx context.Context) error {
	if _, err := f.rival(ctx, ""); errors.Is(err, ErrOtherSource) {
		return err
	}
	saved, err := f.o.TokenStore.Load(ctx, f.o.Name)
	if err != nil { // it is asked again before anything is published
		if errors.Is(ctx.Err(), context.Canceled) {
			return nil
		}
		f.o.Log.LogAttrs(ctx, slog.LevelWarn, "change feed: the position is not known yet", slog.String("feed", f.o.Name), slog.Any("error", err))
		return nil
	}
	return f.ours(saved)
}

// maxRivalInterval bounds how long a standby reports that it is starting.
const maxRivalInterval = time.Second

// watchRivals records who holds the lock while self, an owner of the lock, waits for it.
func (f *Feed) watchRivals(ctx context.Context, self string, stop context.CancelCauseFunc) {
	tick := time.NewTicker(min(f.o.ProgressInterval, maxRivalInterval))
	defer tick.Stop()
	for {
		if !f.status.isLeading() {
			asked, cancel := context.WithTimeout(ctx, checkTimeout)
			held, err := f.rival(asked, self)
			cancel()
			switch {
			case errors.Is(err, ErrOtherSource):
				stop(err)
				return
			case ctx.Err() == nil:
				f.status.waits(held, err)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
