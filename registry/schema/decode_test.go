package schema

import (
	"bytes"
	"encoding/json"
)

// decode decodes a schema's text as the proof and the library take it.
func decode(text []byte) (v any, err error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	err = dec.Decode(&v)
	return v, err
}
