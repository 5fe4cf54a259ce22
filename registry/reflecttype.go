package registry

import (
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	js "github.com/invopop/jsonschema"
)

// reflector makes the schema of one type. The walk over types is its own, since it
// has to be that of encoding/json; the tags of struct fields are read by
// invopop/jsonschema, which sees one struct at a time.
type reflector struct {
	open  bool
	defs  map[reflect.Type]*js.Schema // nil while it is being made
	order []reflect.Type              // of defs, as they were met
	refs  []*js.Schema                // with the index into order in their $ref, until the definitions have names
	stack []reflect.Type              // slices, maps and arrays with a name that are being described
}

var (
	marshalerType     = reflect.TypeFor[json.Marshaler]()
	textMarshalerType = reflect.TypeFor[encoding.TextMarshaler]()
	timeType          = reflect.TypeFor[time.Time]()
	numberType        = reflect.TypeFor[json.Number]()
)

// describer is a type that brings its schema.
type describer interface{ JSONSchema() *js.Schema }

// extender is a type that adds to its schema.
type extender interface{ JSONSchemaExtend(*js.Schema) }

func invalidType(at, format string, args ...any) error {
	if at == "" {
		at = "it"
	}
	return fmt.Errorf("%w: %s %s", ErrInvalidType, at, fmt.Sprintf(format, args...))
}

// root describes the type itself, with the definitions that it needs.
func (r *reflector) root(t reflect.Type) (*js.Schema, error) {
	s, nullable, err := r.describe(t, "")
	if err != nil {
		return nil, err
	}
	var self reflect.Type
	if s.Ref == numbered(0) && t.Kind() == reflect.Struct { // the struct itself is no definition
		s, self = r.defs[t], t
	}
	if nullable {
		s = orNull(s)
	}
	names := definitionNames(r.order)
	for _, ref := range r.refs {
		for i, to := range r.order {
			if ref.Ref != numbered(i) {
				continue // a tag may have put another in its place
			}
			if ref.Ref = "#/$defs/" + names[i]; to == self {
				ref.Ref = "#"
			}
			break
		}
	}
	if len(r.order) > 0 && s.Definitions == nil {
		s.Definitions = js.Definitions{}
	}
	for i, of := range r.order {
		if of != self {
			s.Definitions[names[i]] = r.defs[of]
		}
	}
	s.Version = js.Version
	return s, nil
}

// numbered is the $ref to a definition before the definitions have names.
func numbered(i int) string { return "#\x00" + strconv.Itoa(i) }

// schemaOf describes what is written for a value inside of another.
func (r *reflector) schemaOf(t reflect.Type, at string) (*js.Schema, error) {
	s, nullable, err := r.describe(t, at)
	if err == nil && nullable {
		s = orNull(s)
	}
	return s, err
}

// describe describes what is written for a value of type t, and says whether null
// can be written instead. The schema is the caller's to change. at is the field.
func (r *reflector) describe(t reflect.Type, at string) (s *js.Schema, nullable bool, err error) {
	if t.Kind() == reflect.Interface {
		return &js.Schema{}, false, nil
	}
	if s := r.custom(t); s != nil {
		return s, false, nil
	}
	switch t.Kind() {
	case reflect.Bool:
		return &js.Schema{Type: "boolean"}, false, nil
	case reflect.Float32, reflect.Float64:
		return &js.Schema{Type: "number"}, false, nil
	case reflect.String:
		if t == numberType {
			return &js.Schema{Type: "number"}, false, nil
		}
		return &js.Schema{Type: "string"}, false, nil
	case reflect.Pointer:
		return r.pointer(t, at)
	case reflect.Slice, reflect.Array, reflect.Map:
		s, err := r.collection(t, at)
		return s, t.Kind() != reflect.Array, err
	case reflect.Struct:
		s, err := r.structure(t, at)
		return s, false, err
	default:
		if s := integer(t.Kind()); s != nil {
			return s, false, nil
		}
	}
	return nil, false, invalidType(at, "is a %s, which encoding/json does not write", t)
}

// custom is the schema of types that encoding/json does not look into, else nil.
func (r *reflector) custom(t reflect.Type) *js.Schema {
	if d, ok := methods[describer](t); ok && t.Kind() != reflect.Pointer {
		s := d.JSONSchema()
		if s == nil {
			return &js.Schema{}
		}
		own := *s
		own.Version = ""
		return &own
	}
	switch {
	case t == timeType:
		return &js.Schema{Type: "string", Format: "date-time"}
	case t.Kind() == reflect.Pointer:
		// A pointer's methods are written for what it points to. Those that only the
		// pointer has decide alone where the value cannot be addressed.
		if e := t.Elem(); e.Implements(textMarshalerType) || e.Implements(marshalerType) || !t.Implements(textMarshalerType) || t.Implements(marshalerType) {
			return nil
		}
		return orNull(&js.Schema{Type: "string"})
	case t.Implements(marshalerType):
		return &js.Schema{}
	case t.Implements(textMarshalerType):
		return &js.Schema{Type: "string"}
	case reflect.PointerTo(t).Implements(marshalerType), reflect.PointerTo(t).Implements(textMarshalerType):
		return &js.Schema{} // with the method where the value can be addressed, without it elsewhere
	}
	return nil
}

// methods returns a new value of t as one of M, be the methods those of values or
// of pointers.
func methods[M any](t reflect.Type) (M, bool) {
	return reflect.TypeAssert[M](reflect.New(t))
}

// integer describes the integers whose bounds every reader of JSON knows exactly.
func integer(k reflect.Kind) *js.Schema {
	s := &js.Schema{Type: "integer"}
	bounds := func(low int64, high uint64) {
		s.Minimum, s.Maximum = json.Number(strconv.FormatInt(low, 10)), json.Number(strconv.FormatUint(high, 10))
	}
	switch k {
	case reflect.Int, reflect.Int64:
	case reflect.Uint, reflect.Uint64, reflect.Uintptr:
		s.Minimum = "0"
	case reflect.Int8:
		bounds(math.MinInt8, math.MaxInt8)
	case reflect.Int16:
		bounds(math.MinInt16, math.MaxInt16)
	case reflect.Int32:
		bounds(math.MinInt32, math.MaxInt32)
	case reflect.Uint8:
		bounds(0, math.MaxUint8)
	case reflect.Uint16:
		bounds(0, math.MaxUint16)
	case reflect.Uint32:
		bounds(0, math.MaxUint32)
	default:
		return nil
	}
	return s
}

func (r *reflector) pointer(t reflect.Type, at string) (*js.Schema, bool, error) {
	if slices.Contains(r.stack, t) {
		return nil, false, invalidType(at, "is a %s, a pointer to itself", t)
	}
	r.stack = append(r.stack, t)
	defer func() { r.stack = r.stack[:len(r.stack)-1] }()
	s, err := r.schemaOf(t.Elem(), at)
	return s, true, err
}

// collection describes slices, arrays and maps. One with a name that holds itself
// becomes a definition.
func (r *reflector) collection(t reflect.Type, at string) (*js.Schema, error) {
	if _, ok := r.defs[t]; ok {
		return r.refTo(t), nil
	}
	if slices.Contains(r.stack, t) {
		r.define(t)
		return r.refTo(t), nil
	}
	r.stack = append(r.stack, t)
	defer func() { r.stack = r.stack[:len(r.stack)-1] }()
	s, err := r.elements(t, at)
	if err != nil {
		return nil, err
	}
	if _, ok := r.defs[t]; ok {
		r.defs[t] = s
		return r.refTo(t), nil
	}
	return s, nil
}

func (r *reflector) elements(t reflect.Type, at string) (*js.Schema, error) {
	e := t.Elem()
	if t.Kind() == reflect.Slice && e.Kind() == reflect.Uint8 && !reflect.PointerTo(e).Implements(marshalerType) && !reflect.PointerTo(e).Implements(textMarshalerType) {
		return &js.Schema{Type: "string", ContentEncoding: "base64"}, nil
	}
	of, err := r.schemaOf(e, at+"[]")
	if err != nil {
		return nil, err
	}
	if t.Kind() != reflect.Map {
		s := &js.Schema{Type: "array", Items: of}
		if t.Kind() == reflect.Array {
			n := uint64(t.Len()) //nolint:gosec // a length is not negative
			s.MinItems, s.MaxItems = &n, &n
		}
		return s, nil
	}
	s := &js.Schema{Type: "object", AdditionalProperties: of}
	k := t.Key()
	switch number := integer(k.Kind()); {
	case k.Kind() == reflect.String || k.Implements(textMarshalerType):
	case number != nil && number.Minimum == "0":
		s.PropertyNames = &js.Schema{Pattern: "^[0-9]+$"}
	case number != nil:
		s.PropertyNames = &js.Schema{Pattern: "^-?[0-9]+$"}
	default:
		return nil, invalidType(at, "is a %s: a key is a string, an integer or has MarshalText", t)
	}
	return s, nil
}

func (r *reflector) define(t reflect.Type) {
	r.defs[t] = nil
	r.order = append(r.order, t)
}

func (r *reflector) refTo(t reflect.Type) *js.Schema {
	s := &js.Schema{Ref: numbered(slices.Index(r.order, t))}
	r.refs = append(r.refs, s)
	return s
}

// orNull lets null pass besides what s does.
func orNull(s *js.Schema) *js.Schema {
	_, manyTypes := s.Extras["type"]
	switch {
	case reflect.DeepEqual(s, &js.Schema{}): // anything
		return s
	case s.Type == "" || manyTypes || s.Ref != "" || s.Enum != nil || s.Const != nil || s.Not != nil || s.If != nil || len(s.AllOf)+len(s.AnyOf)+len(s.OneOf) > 0:
		return &js.Schema{AnyOf: []*js.Schema{s, {Type: "null"}}}
	}
	s.Extras = maps.Clone(s.Extras)
	if s.Extras == nil {
		s.Extras = map[string]any{}
	}
	s.Extras["type"], s.Type = []string{s.Type, "null"}, ""
	return s
}

// definitionNames names types: by their name, with their package where two share
// it, with the whole path where that is not enough. The names need no escapes in
// a reference.
func definitionNames(types []reflect.Type) []string {
	names := make([]string, len(types))
	spellings := []func(reflect.Type) string{
		func(t reflect.Type) string { return plainName(t, false) },
		func(t reflect.Type) string { return plainName(t, true) },
		func(t reflect.Type) string { return wordsOf(t.PkgPath() + "." + t.Name()) },
	}
	taken := map[string]int{}
	for _, spell := range spellings {
		for i, t := range types {
			if names[i] == "" || taken[names[i]] > 1 {
				names[i] = spell(t)
			}
		}
		clear(taken)
		for _, name := range names {
			taken[name]++
		}
	}
	clear(taken)
	for i, name := range names { // types of one name in several functions
		if taken[name]++; taken[name] > 1 {
			names[i] = name + "_" + strconv.Itoa(taken[name])
		}
	}
	return names
}

// plainName is a type's name without the paths of packages, which type arguments
// have: "Page[example.com/shop.Item]" is "Page_Item", or "lists.Page_shop.Item".
func plainName(t reflect.Type, packages bool) string {
	parts := strings.FieldsFunc(t.Name(), func(c rune) bool { return strings.ContainsRune("[],* {}", c) })
	for i, part := range parts {
		part = part[strings.LastIndexByte(part, '/')+1:]
		if _, name, ok := strings.Cut(part, "."); ok && !packages {
			part = name
		}
		parts[i] = part
	}
	name := strings.Join(parts, "_")
	if packages {
		path := t.PkgPath()
		name = path[strings.LastIndexByte(path, '/')+1:] + "." + name
	}
	return wordsOf(name)
}

// wordsOf replaces what is neither letter, digit, '.', '_' nor '-'.
func wordsOf(name string) string {
	return strings.Map(func(c rune) rune {
		if c == '.' || c == '-' || c < 0x80 && tokenByte(byte(c)) { //nolint:gosec // below 0x80
			return c
		}
		return '_'
	}, name)
}
