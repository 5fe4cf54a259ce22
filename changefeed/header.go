package changefeed

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"unicode"
	"unicode/utf16"

	"github.com/seed-63e9a637/jetbus"
)

// MongoDB's ids and names of collections may have characters that no header and no id of
// an event can have. What of them is written there is escaped in JSON, or hashed; all the
// others are written as they are, and stay so: feeds go on where an older version ended.

// escaped returns a JSON text with the characters escaped that no header can have. It
// means what it did.
func escaped(text []byte) string {
	s := string(text)
	if strings.IndexFunc(s, unprintable) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if !unprintable(r) {
			b.WriteRune(r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			fmt.Fprintf(&b, `\u%04x`, unit)
		}
	}
	return b.String()
}

// unprintable reports whether jetbus.ValidHeader refuses a character.
func unprintable(r rune) bool {
	return unicode.IsControl(r) || r&0xfffe == 0xfffe || r >= 0xfdd0 && r <= 0xfdef
}

// copyHeader is how far a copy is as HeaderCopy, empty where that is too long for a header.
func copyHeader(p *CopyProgress) (string, error) {
	text, err := json.Marshal(p)
	value := escaped(text)
	if err != nil || jetbus.ValidHeader(HeaderCopy, value) != nil {
		return "", err
	}
	return value, nil
}

// noteCopy renews copyText. For a text that is too long for a header the last one that
// was not stands in: a copy that goes on there repeats what is behind it.
func (r *reader) noteCopy() error {
	if r.pos.copy == nil {
		r.copyText = ""
		return nil
	}
	text, err := copyHeader(r.pos.copy)
	if err == nil && text == "" && r.copyText == "" {
		text, err = copyHeader(&CopyProgress{Start: r.pos.copy.Start})
	}
	if text != "" {
		r.copyText = text
	}
	return err
}

// namespaceHeader is HeaderNamespace. A database's name has no quotation mark, so that a
// name as it is and one in JSON cannot be taken for each other.
func namespaceHeader(c *Change) string {
	ns := c.namespace()
	if jetbus.ValidHeader(HeaderNamespace, ns) == nil {
		return ns
	}
	text, err := json.Marshal(ns)
	value := escaped(text)
	if err != nil || jetbus.ValidHeader(HeaderNamespace, value) != nil {
		return ""
	}
	return value
}

// eventID is the id of the event of a token, or of something else that happens once.
func (f *Feed) eventID(what string) string {
	id := "cf." + f.o.Name + "." + what
	if !validID(id) {
		id = f.hashedID(what)
	}
	return id
}

func (f *Feed) hashedID(what string) string {
	sum := sha256.Sum256([]byte(what))
	return "cf." + f.o.Name + ".h" + hex.EncodeToString(sum[:])
}

// validID reports whether an event may have the id. A key may have what an id may, and
// spaces at its ends.
func validID(id string) bool {
	return len(id) <= jetbus.MaxIDBytes && jetbus.ValidKey(id) == nil && strings.TrimSpace(id) == id
}

// makeValid makes what an event cannot have into what it can: an id that is none is hashed,
// and headers are left out, as the token of a change of a very long _id.
func (f *Feed) makeValid(e *jetbus.Event) {
	if !validID(e.ID) {
		e.ID = f.hashedID(e.ID)
	}
	e.Headers = maps.Clone(e.Headers)
	maps.DeleteFunc(e.Headers, func(name, value string) bool { return jetbus.ValidHeader(name, value) != nil })
}
