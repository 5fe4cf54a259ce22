package drive

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
)

// edit replaces a part of a file.
type edit struct {
	file                             string
	from, to                         int // bytes
	line, column, endLine, endColumn int // the same for SARIF
	text                             string
}

// mend writes the edits of findings into their files, and returns the findings that
// have none.
func mend(list []Finding) ([]Finding, error) {
	files := make(map[string][]edit)
	var rest []Finding
	for _, f := range list {
		if len(f.edits) == 0 {
			rest = append(rest, f)
		}
		for _, e := range f.edits {
			files[e.file] = append(files[e.file], e)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := mendFile(name, files[name]); err != nil {
			return nil, fmt.Errorf("mend %s: %w", name, err)
		}
	}
	return rest, nil
}

func mendFile(name string, edits []edit) error {
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	slices.SortFunc(edits, func(a, b edit) int { return cmp.Compare(b.from, a.from) }) // from the end, so that offsets hold
	last := len(text) + 1
	for _, e := range edits {
		if e.to > last || e.to > len(text) || e.from == last {
			continue // the same edit again, by another finding
		}
		text = slices.Replace(text, e.from, e.to, []byte(e.text)...)
		last = e.from
	}
	return os.WriteFile(name, text, info.Mode().Perm())
}
