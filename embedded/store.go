package embedded

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

const (
	// copyName is the copy while it is being made.
	copyName = "jetstream.copy"
	// killedName is the finished copy, about to replace the store.
	killedName = "jetstream.killed"
	// replacedName is the store that the copy has replaced, about to be removed.
	replacedName = "jetstream.replaced"

	// maxCopyPasses bounds how often a store that does not rest is copied again.
	maxCopyPasses = 500
	copyPause     = 2 * time.Millisecond
)

// copyStore copies the server's store, while the server runs, to copyName. It
// repeats until a pass finds nothing changed, so that the copy is the state of
// one moment.
func copyStore(ctx context.Context, dir string) error {
	dst := filepath.Join(dir, copyName)
	if err := os.RemoveAll(dst); err != nil {
		return fmt.Errorf("copy store: %w", err)
	}
	c := &treeCopy{src: storeDir(dir), dst: dst, seen: map[string]fs.FileInfo{}}
	tick := time.NewTicker(copyPause)
	defer tick.Stop()
	for range maxCopyPasses {
		changed, err := c.pass()
		if err == nil && !changed {
			return nil
		}
		if err == nil {
			select {
			case <-tick.C:
				continue
			case <-ctx.Done():
				err = ctx.Err()
			}
		}
		return errors.Join(fmt.Errorf("copy store: %w", err), os.RemoveAll(dst))
	}
	return errors.Join(errors.New("copy store: it does not come to rest"), os.RemoveAll(dst))
}

// treeCopy keeps dst like src.
type treeCopy struct {
	src, dst string
	seen     map[string]fs.FileInfo // by path under src, as of the last pass
}

// pass copies what differs from the last pass and says if anything did.
func (c *treeCopy) pass() (changed bool, err error) {
	now := map[string]fs.FileInfo{}
	err = filepath.WalkDir(c.src, func(path string, d fs.DirEntry, err error) error {
		if gone(err) {
			changed = true
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(c.src, path)
		if err != nil {
			return err
		}
		// Before the copy: a write during it shows in the next pass.
		info, err := d.Info()
		if err == nil {
			if was := c.seen[rel]; was != nil && unchanged(was, info) {
				now[rel] = info
				return nil
			}
			changed = true
			err = c.copyOne(rel, info)
		}
		if gone(err) {
			changed = true
			return nil
		}
		now[rel] = info
		return err
	})
	if err != nil {
		return false, err
	}
	for rel := range c.seen {
		if now[rel] == nil {
			changed = true
			if err := os.RemoveAll(filepath.Join(c.dst, rel)); err != nil {
				return false, err
			}
		}
	}
	c.seen = now
	return changed, nil
}

func (c *treeCopy) copyOne(rel string, info fs.FileInfo) error {
	dst := filepath.Join(c.dst, rel)
	if info.IsDir() {
		return os.MkdirAll(dst, 0o700)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is neither a file nor a folder", rel)
	}
	in, err := os.Open(filepath.Join(c.src, rel))
	if err != nil {
		return err
	}
	defer in.Close()
	// Its folder may be gone if src changes a lot; the next pass sees that.
	out, err := os.OpenFile(dst, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) }

func unchanged(a, b fs.FileInfo) bool {
	if a.IsDir() && b.IsDir() {
		return true // its entries are compared one by one
	}
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// swapStore puts the finished copy in the place of the store.
func swapStore(dir string) error {
	if err := os.Rename(filepath.Join(dir, copyName), filepath.Join(dir, killedName)); err != nil {
		return fmt.Errorf("put copied store in place: %w", err)
	}
	return finishSwap(dir)
}

// finishSwap completes a swap, also one that this process or an earlier one
// began and did not finish, and removes an unfinished copy.
func finishSwap(dir string) error {
	killed, replaced := filepath.Join(dir, killedName), filepath.Join(dir, replacedName)
	_, err := os.Stat(killed)
	switch {
	case err == nil:
		if err = os.RemoveAll(replaced); err == nil {
			err = os.Rename(storeDir(dir), replaced)
		}
		if err == nil || gone(err) {
			err = os.Rename(killed, storeDir(dir))
		}
	case gone(err):
		err = nil
	}
	if err == nil {
		err = os.RemoveAll(filepath.Join(dir, copyName))
	}
	if err != nil {
		return fmt.Errorf("put copied store in place: %w", err)
	}
	// The server writes to the folders of atomic batches for a moment after its shutdown, so that they
	// may not be removable yet. Then the next call removes them.
	_ = os.RemoveAll(replaced)
	return nil
}
