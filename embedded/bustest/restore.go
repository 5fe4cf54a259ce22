package bustest

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/seed-63e9a637/jetbus/embedded"
)

// Restorable is a broker whose store can be reset to an earlier state, as when an operator restores
// a backup.
type Restorable struct {
	*embedded.Broker
	dir string
	n   int
}

// Backup is a copy of a broker's store.
type Backup string

// StartRestorable starts a broker with its own folder. It runs until the end of the test.
func StartRestorable(t testing.TB) *Restorable {
	t.Helper()
	dir := t.TempDir()
	return &Restorable{Broker: Start(t, embedded.Config{Dir: filepath.Join(dir, "broker")}), dir: dir}
}

// Backup copies the broker's store. It restarts the broker.
func (r *Restorable) Backup(t testing.TB) Backup {
	t.Helper()
	r.n++
	b := filepath.Join(r.dir, "backup", strconv.Itoa(r.n))
	r.replace(t, func() error { return os.CopyFS(b, os.DirFS(r.store())) })
	return Backup(b)
}

// Restore stops the broker, replaces its store with a backup and starts it again. While the broker is
// stopped, Restore calls down, unless down is nil.
func (r *Restorable) Restore(t testing.TB, b Backup, down func()) {
	t.Helper()
	r.replace(t, func() error {
		err := errors.Join(os.RemoveAll(r.store()), os.CopyFS(r.store(), os.DirFS(string(b))))
		if down != nil {
			down()
		}
		return err
	})
}

// RestoreStream is like Restore, but replaces a single stream, as after a loss of power that the other
// streams survived.
func (r *Restorable) RestoreStream(t testing.TB, b Backup, stream string) {
	t.Helper()
	dir := filepath.Join("$G", "streams", stream)
	r.replace(t, func() error {
		there := filepath.Join(r.store(), dir)
		return errors.Join(os.RemoveAll(there), os.CopyFS(there, os.DirFS(filepath.Join(string(b), dir))))
	})
}

func (r *Restorable) store() string { return filepath.Join(r.dir, "broker", "jetstream") }

// replace kills the broker, calls f and restarts the broker.
func (r *Restorable) replace(t testing.TB, f func() error) {
	t.Helper()
	err := r.Kill(t.Context())
	if err == nil {
		err = errors.Join(f(), r.Restart(t.Context()))
	}
	if err != nil {
		t.Fatal(err)
	}
}
