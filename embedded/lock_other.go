//go:build !windows && (!unix || aix || solaris)

package embedded

import (
	"io"
	"os"
	"path/filepath"
	"sync"
)

var locked sync.Map // path -> struct{}

// lockFile takes the lock at path, or fails with errLocked. These platforms
// have no lock in the standard library that outlives nothing but its process,
// so only brokers of this process are kept apart.
func lockFile(path string) (io.Closer, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(abs, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if _, taken := locked.LoadOrStore(abs, struct{}{}); taken {
		f.Close()
		return nil, errLocked
	}
	return &processLock{File: f, path: abs}, nil
}

type processLock struct {
	*os.File
	path string
}

func (l *processLock) Close() error {
	locked.Delete(l.path)
	return l.File.Close()
}
