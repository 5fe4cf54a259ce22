package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	js "github.com/invopop/jsonschema"

	"github.com/seed-63e9a637/jetbus/registry/schema"
)

// ErrInvalidType says that a Go type has no JSON Schema, since encoding/json does not
// write its values, or since its tags contradict what encoding/json writes.
var ErrInvalidType = errors.New("the Go type has no JSON Schema")

// ReflectOptions are options of [Reflect]. The zero value suits both models.
type ReflectOptions struct {
	// Open leaves it unsaid whether an object may have more properties than the
	// struct has fields. By default it may not: then a new optional field can be
	// told from one that was always possible, and adding it is backward compatible
	// under the strict model, too. Under the declared model, where readers ignore
	// what they do not know, both ways are the same.
	Open bool
}

// Reflect returns the JSON Schema, of draft 2020-12, of what encoding/json writes
// for values of T. One type has one text, always.
//
// A field without omitempty and omitzero is required. A pointer, slice or map may
// be null wherever encoding/json writes null for nil; a pointer as T itself stands
// for what it points to. Integers of 8, 16 and 32 bits have their bounds, unsigned
// ones are 0 or more. A time.Time is a date-time, a time.Duration an integer, a
// []byte base64 text, an interface anything. A type with a method MarshalText is a
// string and one with MarshalJSON anything, unless it has a method
//
//	JSONSchema() *jsonschema.Schema
//
// of package github.com/invopop/jsonschema. The struct tags of that package work:
// jsonschema:"minimum=1,enum=a,enum=b,format=email,description=...", and so does
// JSONSchemaExtend(*jsonschema.Schema).
//
// Before it is returned the schema is checked: it compiles, and it accepts by its
// shape (types, null, properties, what is required) the zero value of T and one in
// which everything is set. Constraints of values, such as minLength and enum, are
// the tags' to make: the zero value need not fit them.
//
// The error wraps [ErrInvalidType] and names the field.
func Reflect[T any](o ...ReflectOptions) (string, error) {
	if len(o) == 0 {
		o = []ReflectOptions{{}}
	}
	return reflectType(reflect.TypeFor[T](), o[len(o)-1])
}

// reflectType is Reflect. Methods of the types are called, and may panic.
func reflectType(t reflect.Type, o ReflectOptions) (text string, err error) {
	defer func() {
		if r := recover(); r != nil {
			text, err = "", fmt.Errorf("%w: panic: %v", ErrInvalidType, r)
		}
		if err != nil {
			err = fmt.Errorf("reflect %s: %w", t, err)
		}
	}()
	for t.Kind() == reflect.Pointer && t.Name() == "" {
		t = t.Elem()
	}
	r := &reflector{open: o.Open, defs: map[reflect.Type]*js.Schema{}}
	root, err := r.root(t)
	if err != nil {
		return "", err
	}
	text, err = schemaText(root)
	if err != nil {
		return "", err
	}
	if _, err := schema.Compile(text, schema.Options{}); err != nil {
		return "", fmt.Errorf("%w: %w", ErrInvalidType, err)
	}
	if err := checkShape(t, root); err != nil {
		return "", err
	}
	return text, nil
}

// schemaText writes a schema for people, or without spaces if it is large.
func schemaText(s *js.Schema) (string, error) {
	text, err := json.MarshalIndent(s, "", "  ")
	if err == nil && len(text) > schema.MaxText {
		text, err = json.Marshal(s)
	}
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrInvalidType, err)
	}
	return string(text), nil
}
