package registry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"unicode/utf8"

	"github.com/seed-63e9a637/jetbus/internal/exactjson"
)

// maxRecordBytes is the size of the largest record, and of the bucket's values.
const maxRecordBytes = 256 << 10

// storedVersion is the record of a version.
type storedVersion struct {
	Version

	Nonce string `json:"nonce"`
}

// identity is the record of an id.
type identity struct {
	Fingerprint string `json:"fingerprint"`
}

// mark is the record of what is said by its key alone.
type mark struct {
	Why string `json:"why"`
}

// encode makes the bytes of a record. Schemas are full of '<' and '&', which stay
// as they are.
func encode(record any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(record); err != nil {
		return nil, err
	}
	if b.Len() > maxRecordBytes {
		return nil, fmt.Errorf("%w: the record has %d bytes, at most %d are allowed", ErrTooLarge, b.Len(), maxRecordBytes)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// decode reads one JSON value into record. Members that this release does not know
// are passed over.
func decode(data []byte, record any) error {
	if !utf8.Valid(data) {
		return fmt.Errorf("%w: not UTF-8", ErrUnreadable)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(record); err != nil {
		return fmt.Errorf("%w: %w", ErrUnreadable, exactjson.Readable(data, err))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: more than one JSON value", ErrUnreadable)
	}
	return nil
}

// decodeVersion reads the record of a version into e.
func decodeVersion(data []byte, key Reference, e *entry) error {
	var v storedVersion
	if err := decode(data, &v); err != nil {
		return err
	}
	if err := v.check(key); err != nil {
		return err
	}
	e.Version, e.nonce = v.Version, v.Nonce
	return nil
}

// check checks what the rest of the package relies on.
func (v *storedVersion) check(key Reference) error {
	problem := ""
	switch {
	case v.Reference() != key:
		problem = "it says that it is " + v.Reference().String()
	case v.Erased: // nothing more is known of it
		return nil
	case v.Text == "":
		problem = "it has no schema"
	case v.Fingerprint == "":
		problem = "it has no fingerprint"
	case v.ID < 1:
		problem = "it has no id"
	case !slices.Contains([]Admission{First, Proved, Forced, Unchecked}, v.Admission):
		problem = fmt.Sprintf("admission %.40q is not known", string(v.Admission))
	}
	if problem != "" {
		return fmt.Errorf("%w: %s", ErrUnreadable, problem)
	}
	for _, r := range v.References {
		if _, err := ParseReference(r.String()); err != nil {
			return fmt.Errorf("%w: %w", ErrUnreadable, err)
		}
	}
	return nil
}

func decodeSettings(data []byte) (Settings, error) {
	var s Settings
	if err := decode(data, &s); err != nil {
		return Settings{}, err
	}
	if err := s.Valid(); err != nil { // in words alone: it is no fault of who reads it
		return Settings{}, fmt.Errorf("%w: %s", ErrUnreadable, err.Error())
	}
	return s, nil
}

func decodeIdentity(data []byte) (fingerprint string, err error) {
	var i identity
	if err := decode(data, &i); err != nil {
		return "", err
	}
	if i.Fingerprint == "" {
		return "", fmt.Errorf("%w: it has no fingerprint", ErrUnreadable)
	}
	return i.Fingerprint, nil
}

// equal reports whether two versions say the same.
func (v Version) equal(o Version) bool {
	return v.Reference() == o.Reference() && v.ID == o.ID && v.Fingerprint == o.Fingerprint && v.Text == o.Text &&
		v.Draft == o.Draft && slices.Equal(v.References, o.References) && maps.Equal(v.Metadata, o.Metadata) &&
		v.Level == o.Level && v.Model == o.Model && v.Admission == o.Admission && v.By == o.By &&
		v.Created.Equal(o.Created) && v.Deleted.Equal(o.Deleted) && v.Erased == o.Erased
}
