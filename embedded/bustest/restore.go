package bustest

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/seed-63e9a637/jetbus/embedded"
)

// Restorable is a broker whose store can be put back to an earlier state, as an operator
// does who restores a backup.
type Restorable struct {
	*embedded.Broker
	dir string
	n   int
}

// Backup is the state of a broker at a moment.
type Backup string

// StartRestorable starts a broker on a folder of its own until the end of the test.
func StartRestorable(t testing.TB) *Restorable {
	t.Helper()
	dir := t.TempDir()
	return &Restorable{Broker: Start(t, embedded.Config{Dir: filepath.Join(dir, "broker")}), dir: dir}
}

// Backup copies the broker's store. The broker restarts for it.
func (r *Restorable) Backup(t testing.TB) Backup {
	t.Helper()
	r.n++
	b := filepath.Join(r.dir, "backup", strconv.Itoa(r.n))
	r.replace(t, func() error { return os.CopyFS(b, os.DirFS(r.store())) })
	return Backup(b)
}

// Restore stops the broker, puts a backup in the place of its store, calls down, if that is
// not nil, and starts the broker.
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

// RestoreStream is Restore of one stream, as after a loss of power that others survived.
func (r *Restorable) RestoreStream(t testing.TB, b Backup, stream string) {
	t.Helper()
	dir := filepath.Join("$G", "streams", stream)
	r.replace(t, func() error {
		there := filepath.Join(r.store(), dir)
		return errors.Join(os.RemoveAll(there), os.CopyFS(there, os.DirFS(filepath.Join(string(b), dir))))
	})
}

func (r *Restorable) store() string { return filepath.Join(r.dir, "broker", "jetstream") }

// replace calls f while the broker is down.
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
