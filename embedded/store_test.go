package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tree reads all files under dir, by path.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		files[rel] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, data := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTreeCopyFollows(t *testing.T) {
	c := &treeCopy{src: t.TempDir(), dst: filepath.Join(t.TempDir(), "dst"), seen: map[string]fs.FileInfo{}}
	for i, change := range []func(){
		func() { write(t, c.src, map[string]string{"a": "1", "b/c": "2", "b/d": "3"}) },
		func() { write(t, c.src, map[string]string{"a": "longer", "e/f/g": "new"}) },
		func() { write(t, c.src, map[string]string{"b/c": ""}) },
		func() { _ = os.RemoveAll(filepath.Join(c.src, "b")) },
		func() {
			write(t, c.src, map[string]string{"x": "LONGER"})
			_ = os.Rename(filepath.Join(c.src, "x"), filepath.Join(c.src, "a"))
		},
	} {
		change()
		for _, want := range []bool{true, false} {
			changed, err := c.pass()
			if err != nil {
				t.Fatal(err)
			}
			if changed != want {
				t.Errorf("step %d: changed = %v, want %v", i, changed, want)
			}
		}
		if diff := cmp.Diff(tree(t, c.src), tree(t, c.dst)); diff != "" {
			t.Errorf("step %d: the copy differs:\n%s", i, diff)
		}
	}
}

func TestCopyOfARestlessStoreEnds(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"jetstream/a": "1"})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	// The first pass always finds a change, so the wait for the second sees ctx.
	if err := copyStore(ctx, dir); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("copyStore: %v", err)
	}
	if err := copyStore(t.Context(), dir); err != nil {
		t.Error(err)
	}
}

func TestSwapIsFinishedLater(t *testing.T) {
	store := map[string]string{"jetstream/a": "old", "jetstream/b": "old"}
	for name, tc := range map[string]struct{ left, want map[string]string }{
		"nothing left":      {nil, store},
		"copy not finished": {map[string]string{"jetstream.copy/a": "cop"}, store},
		"copy finished":     {map[string]string{"jetstream.killed/a": "new"}, map[string]string{"jetstream/a": "new"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			before := maps.Clone(store)
			maps.Copy(before, tc.left)
			write(t, dir, before)
			for i := range 2 {
				if err := finishSwap(dir); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tc.want, tree(t, dir)); diff != "" {
					t.Error(fmt.Sprint("time ", i), diff)
				}
			}
		})
	}
}
