package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	js "github.com/invopop/jsonschema"
	"pgregory.net/rapid"

	"github.com/seed-63e9a637/jetbus/registry/schema"
)

type reflectedPage[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next,omitempty"`
}

type reflectedTree struct {
	Name     string           `json:"name"`
	Children []*reflectedTree `json:"children,omitempty"`
	Parent   *reflectedTree   `json:"parent"`
}

type reflectedBase struct {
	ID    string `json:"id"`
	Shade int
}

type reflectedList []reflectedList

type reflectedMap map[string]reflectedMap

type reflectedLevel int

func (l reflectedLevel) MarshalText() ([]byte, error) { return []byte(fmt.Sprint("l", int(l))), nil }

type reflectedColor struct{ R, G, B uint8 }

func (c reflectedColor) MarshalJSON() ([]byte, error) {
	return json.Marshal(fmt.Sprintf("#%02x%02x%02x", c.R, c.G, c.B))
}

func (reflectedColor) JSONSchema() *js.Schema {
	return &js.Schema{Type: "string", Pattern: "^#[0-9a-f]{6}$"}
}

type reflectedNote struct {
	Text string `json:"text"`
}

func (reflectedNote) JSONSchemaExtend(s *js.Schema) { s.Title = "A note" }

type reflectedShadow struct {
	ID    string `json:"id"`
	Other string `json:"Shade"`
}

// everything has a field for each rule of encoding/json.
type everything struct {
	Bool    bool           `json:"bool"`
	Int     int            `json:"int"`
	Small   int8           `json:"small,omitempty"`
	Byte    byte           `json:"byte"`
	Wide    uint64         `json:"wide"`
	Float   float64        `json:"float"`
	Quoted  int            `json:"quoted,string"`
	QuotedP *bool          `json:"quotedp,string"`
	QuotedS string         `json:"quoteds,string"`
	Number  json.Number    `json:"number"`
	Time    time.Time      `json:"time"`
	TimeP   *time.Time     `json:"timep"`
	Took    time.Duration  `json:"took"`
	Addr    netip.Addr     `json:"addr"`
	Big     *big.Int       `json:"big"`
	BigText *big.Float     `json:"bigtext"`
	Level   reflectedLevel `json:"level,string"`

	Pointer  *string                     `json:"pointer"`
	Left     *string                     `json:"left,omitempty"`
	Double   **string                    `json:"double,omitempty"`
	Slice    []string                    `json:"slice"`
	SliceO   []string                    `json:"sliceo,omitempty"`
	SliceZ   []int                       `json:"slicez,omitzero"`
	Nested   [][]int                     `json:"nested"`
	Array    [3]byte                     `json:"array"`
	Bytes    []byte                      `json:"bytes"`
	Raw      json.RawMessage             `json:"raw"`
	Any      any                         `json:"any"`
	Map      map[string]any              `json:"map"`
	MapInt   map[int]*int                `json:"mapint"`
	MapLevel map[reflectedLevel][]string `json:"maplevel"`
	Struct   struct {
		A int `json:"a,omitempty"`
	} `json:"struct"`
	Tree  reflectedTree                `json:"tree"`
	List  reflectedList                `json:"list"`
	Deep  reflectedMap                 `json:"deep"`
	Page  reflectedPage[reflectedNote] `json:"page"`
	Color reflectedColor               `json:"color"`
	Note  *reflectedNote               `json:"note"`
	Dash  int                          `json:"-,"` //nolint:staticcheck // a member with that name
	Gone  chan int                     `json:"-"`
	Plain string
	Odd   string `json:"a\"b"` //nolint:staticcheck // what encoding/json makes of it
	reflectedBase
	*reflectedShadow
	hidden func() //nolint:unused // it is not written
}

// reflected is Reflect for a type that is known at run time.
func reflected(t *testing.T, v any) string {
	t.Helper()
	text, err := reflectType(reflect.TypeOf(v), ReflectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func compact(t *testing.T, text string) string {
	t.Helper()
	var s json.RawMessage = []byte(text)
	out, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Replace(string(out), `"$schema":"https://json-schema.org/draft/2020-12/schema",`, "", 1)
}

func TestReflectShapes(t *testing.T) {
	object := func(properties, required string) string {
		return `{"properties":{` + properties + `},"additionalProperties":false,"type":"object","required":[` + required + `]}`
	}
	for _, tt := range []struct {
		value any
		want  string
	}{
		{"", `{"type":"string"}`},
		{uint8(0), `{"maximum":255,"minimum":0,"type":"integer"}`},
		{int64(0), `{"type":"integer"}`},
		{uint(0), `{"minimum":0,"type":"integer"}`},
		{time.Time{}, `{"type":"string","format":"date-time"}`},
		{time.Second, `{"type":"integer"}`},
		{json.Number(""), `{"type":"number"}`},
		{[]string{}, `{"items":{"type":"string"},"type":["array","null"]}`},
		{[]byte{}, `{"contentEncoding":"base64","type":["string","null"]}`},
		{[2]bool{}, `{"items":{"type":"boolean"},"type":"array","maxItems":2,"minItems":2}`},
		{map[string]any{}, `{"additionalProperties":true,"type":["object","null"]}`},
		{map[int]bool{}, `{"additionalProperties":{"type":"boolean"},"propertyNames":{"pattern":"^-?[0-9]+$"},"type":["object","null"]}`},
		{struct{ A int }{}, object(`"A":{"type":"integer"}`, `"A"`)},
		{&struct{ A *int }{}, object(`"A":{"type":["integer","null"]}`, `"A"`)},
		{struct {
			A *int `json:",omitempty"`
		}{}, `{"properties":{"A":{"type":"integer"}},"additionalProperties":false,"type":"object"}`},
		{struct {
			A string  `json:"a" jsonschema:"enum=x,enum=y,description=what"`
			B *string `json:"b" jsonschema:"enum=x"`
			C int     `json:"c,omitempty" jsonschema:"minimum=3,default=4"`
			D []int   `json:"d" jsonschema:"minItems=1,maximum=9,nullable"`
			E int8    `json:"e,string" jsonschema:"pattern=^[1-9]$"`
		}{}, object(`"a":{"type":"string","enum":["x","y"],"description":"what"},`+
			`"b":{"anyOf":[{"type":"string","enum":["x"]},{"type":"null"}]},`+
			`"c":{"type":"integer","minimum":3,"default":4},`+
			`"d":{"items":{"type":"integer","maximum":9},"minItems":1,"type":["array","null"]},`+
			`"e":{"type":"string","pattern":"^[1-9]$"}`, `"a","b","d","e"`)},
		{reflectedNote{}, `{"properties":{"text":{"type":"string"}},"additionalProperties":false,"type":"object","required":["text"],"title":"A note"}`},
	} {
		got := reflected(t, tt.value)
		if !sameJSON(t, compact(t, got), tt.want) {
			t.Errorf("%T:\n%s\nwant\n%s", tt.value, compact(t, got), tt.want)
		}
	}
}

func sameJSON(t *testing.T, a, b string) bool {
	t.Helper()
	var x, y any
	if err := errors.Join(json.Unmarshal([]byte(a), &x), json.Unmarshal([]byte(b), &y)); err != nil {
		t.Fatal(err)
	}
	return reflect.DeepEqual(x, y)
}

func TestReflectRecursiveTypes(t *testing.T) {
	text, err := Reflect[*reflectedTree]()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(text, "$defs") || strings.Count(text, `"$ref": "#"`) != 2 {
		t.Errorf("%s", text)
	}
	s := compiled(t, text)
	if err := s.Validate([]byte(`{"name":"a","children":[{"name":"b","parent":null},null],"parent":{"name":"c","parent":null}}`)); err != nil {
		t.Error(err)
	}
	if err := s.Validate([]byte(`{"name":"a","parent":{"name":"c"}}`)); err == nil {
		t.Error("a parent without a parent is accepted")
	}
	for _, v := range []any{reflectedList{}, reflectedMap{}, struct{ A, B reflectedList }{}} {
		s := compiled(t, reflected(t, v))
		if err := s.Validate([]byte(`7`)); err == nil {
			t.Errorf("%T: 7 is accepted", v)
		}
	}
}

// Generic types, types of one name in several packages, and local ones all have
// names that references resolve to.
func TestReflectNames(t *testing.T) {
	type Version struct {
		Local string `json:"local"`
	}
	inner := func() any {
		type Version struct {
			Inner int `json:"inner"`
		}
		return Version{}
	}()
	typ := reflect.StructOf([]reflect.StructField{
		{Name: "A", Type: reflect.TypeFor[Version]()},
		{Name: "B", Type: reflect.TypeOf(inner)},
		{Name: "C", Type: reflect.TypeFor[reflectedPage[map[string]reflectedPage[Reference]]]()},
		{Name: "D", Type: reflect.TypeFor[schema.Reason]()},
		{Name: "E", Type: reflect.TypeFor[*Reason]()},
	})
	text, err := reflectType(typ, ReflectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Defs map[string]any `json:"$defs"`
	}
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"reflectedPage_Reference", "schema.Reason", "registry.Reason", "Reference"} {
		if doc.Defs[name] == nil {
			t.Errorf("no definition %s in %s", name, text)
		}
	}
	if len(doc.Defs) != 7 {
		t.Errorf("%d definitions: %s", len(doc.Defs), text)
	}
	s := compiled(t, text)
	ok := `{"A":{"local":""},"B":{"inner":1},"C":{"items":[{"x":{"items":[{"topic":"t","version":1}]}}]},"D":{"Keyword":"","Path":"","Message":""},"E":null}`
	if err := s.Validate([]byte(ok)); err != nil {
		t.Error(err)
	}
	if err := s.Validate([]byte(strings.Replace(ok, `"inner"`, `"local"`, 1))); err == nil {
		t.Error("the two local types are one")
	}
}

// Reason has the name of a type in another package.
type Reason struct {
	Own int `json:"own"`
}

func compiled(t *testing.T, text string) *schema.Schema {
	t.Helper()
	s, err := schema.Compile(text, schema.Options{})
	if err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	return s
}

func TestReflectOpen(t *testing.T) {
	text, err := Reflect[reflectedBase](ReflectOptions{Open: true})
	if err != nil || strings.Contains(text, "additionalProperties") {
		t.Errorf("%v: %s", err, text)
	}
	if again, _ := Reflect[reflectedBase](ReflectOptions{Open: true}); again != text {
		t.Errorf("another text the second time: %s", again)
	}
}

type panicking struct{}

func (panicking) JSONSchema() *js.Schema { panic("no") }

type selfPointer *selfPointer

func TestReflectRefuses(t *testing.T) {
	for _, tt := range []struct {
		value any
		want  string
	}{
		{make(chan int), "it is a chan int, which encoding/json does not write"},
		{struct{ Call []func() }{}, "Call[] is a func()"},
		{struct{ Z complex128 }{}, "Z is a complex128"},
		{reflectedPage[map[[2]int]string]{}, "Items[] is a map[[2]int]string: a key is a string, an integer or has MarshalText"},
		{struct{ A struct{ B map[float64]int } }{}, "A.B is a map[float64]int"},
		{struct{ P selfPointer }{}, "a pointer to itself"},
		{struct {
			A int `jsonschema:"-"`
		}{}, `A is written by encoding/json and hidden by jsonschema:"-"`},
		{struct {
			A string `json:"a,omitempty" jsonschema:"required"`
		}{}, "for the zero value"},
		{struct {
			A int `json:"a" jsonschema:"type=string"`
		}{}, "/a"},
		{struct {
			A string `json:"a" jsonschema:"pattern=(?=x)"`
		}{}, "#/properties/a"},
		{panicking{}, "panic: no"},
	} {
		text, err := reflectType(reflect.TypeOf(tt.value), ReflectOptions{})
		if !errors.Is(err, ErrInvalidType) || !strings.Contains(err.Error(), tt.want) || text != "" {
			t.Errorf("%T: %v, %q, want an error that says %q", tt.value, err, text, tt.want)
		}
	}
}

// Constraints of values are the tags' to make, though the zero value breaks them.
func TestReflectLetsTagsConstrain(t *testing.T) {
	text := reflected(t, struct {
		Kind  string   `json:"kind" jsonschema:"enum=a,enum=b"`
		Mail  *string  `json:"mail" jsonschema:"format=email,minLength=3"`
		Count int      `json:"count" jsonschema:"minimum=1"`
		Tags  []string `json:"tags,omitempty" jsonschema:"minItems=1"`
	}{})
	s := compiled(t, text)
	if err := s.Validate([]byte(`{"kind":"a","mail":null,"count":1}`)); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{`{"kind":"","mail":null,"count":1}`, `{"kind":"a","mail":"x","count":1}`, `{"kind":"a","mail":null,"count":0}`} {
		if err := s.Validate([]byte(bad)); err == nil {
			t.Errorf("%s is accepted", bad)
		}
	}
}

// The proof understands what Reflect writes: a type is compatible with itself, and
// with one that has an optional field more.
func TestReflectProves(t *testing.T) {
	type more struct {
		everything

		Extra *string `json:"extra,omitempty"`
	}
	before, after := compiled(t, reflected(t, everything{})), compiled(t, reflected(t, more{}))
	for _, m := range []schema.Model{schema.Strict, schema.Declared} {
		if v := schema.Compare(before, before, m); v.Result != schema.Proved {
			t.Errorf("with itself, %s: %s", m, v)
		}
		if v := schema.Compare(before, after, m); v.Result != schema.Proved {
			t.Errorf("with a field more, %s: %s", m, v)
		}
	}
	if v := schema.Compare(after, before, schema.Declared); v.Result != schema.Proved {
		t.Errorf("with a field less, declared: %s", v)
	}
}

// What encoding/json writes for any value of a type fits the type's schema.
func TestReflectAcceptsAllValues(t *testing.T) {
	for _, typ := range []reflect.Type{
		reflect.TypeFor[everything](), reflect.TypeFor[reflectedTree](), reflect.TypeFor[reflectedPage[reflectedPage[int]]](),
		reflect.TypeFor[map[int16][]*reflectedBase](), reflect.TypeFor[Version](), reflect.TypeFor[Settings](),
	} {
		text, err := reflectType(typ, ReflectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s := compiled(t, text)
		rapid.Check(t, func(rt *rapid.T) {
			v := reflect.New(typ)
			draw(rt, v.Elem(), 5)
			payload, err := json.Marshal(v.Elem().Interface())
			if err != nil {
				rt.Fatal(err)
			}
			if err := s.Validate(payload); err != nil {
				rt.Fatalf("%s: %v\n%s\n%s", typ, err, payload, text)
			}
			if err := s.ValidateDeclared(payload); err != nil {
				rt.Fatalf("%s, declared: %v\n%s\n%s", typ, err, payload, text)
			}
		})
	}
}

// draw sets v to a random value.
func draw(rt *rapid.T, v reflect.Value, depth int) {
	t := v.Type()
	if !v.CanSet() {
		return
	}
	some := func() bool { return depth > 0 && rapid.Bool().Draw(rt, "some") }
	switch x := v.Addr().Interface().(type) {
	case *time.Time:
		*x = time.Unix(rapid.Int64Range(-1e10, 1e11).Draw(rt, "time"), 0).UTC()
		return
	case *json.Number:
		*x = json.Number(rapid.SampledFrom([]string{"", "0", "-1.5e3"}).Draw(rt, "number"))
		return
	case *json.RawMessage:
		*x = json.RawMessage(rapid.SampledFrom([]string{"null", "[1]", `{"a":{}}`}).Draw(rt, "raw"))
		return
	case *netip.Addr, *big.Int, *big.Float:
		return
	}
	switch t.Kind() {
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(rt, "bool"))
	case reflect.String:
		v.SetString(rapid.String().Draw(rt, "string"))
	case reflect.Float32, reflect.Float64:
		v.SetFloat(rapid.Float64Range(-1e38, 1e38).Draw(rt, "float"))
	case reflect.Interface:
		if some() {
			v.Set(reflect.ValueOf(rapid.SampledFrom([]any{1.5, "a", []any{nil}, map[string]any{"x": true}}).Draw(rt, "any")))
		}
	case reflect.Pointer:
		if some() {
			v.Set(reflect.New(t.Elem()))
			draw(rt, v.Elem(), depth-1)
		}
	case reflect.Slice:
		if some() {
			n := rapid.IntRange(0, 2).Draw(rt, "n")
			v.Set(reflect.MakeSlice(t, n, n))
			for i := range n {
				draw(rt, v.Index(i), depth-1)
			}
		}
	case reflect.Array:
		for i := range v.Len() {
			draw(rt, v.Index(i), depth)
		}
	case reflect.Map:
		if some() {
			v.Set(reflect.MakeMap(t))
			for range rapid.IntRange(0, 2).Draw(rt, "n") {
				key, value := reflect.New(t.Key()).Elem(), reflect.New(t.Elem()).Elem()
				draw(rt, key, depth-1)
				draw(rt, value, depth-1)
				v.SetMapIndex(key, value)
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := t.Field(i); f.Anonymous && f.Type.Kind() == reflect.Pointer && !f.IsExported() && some() {
				continue // cannot be set from here
			}
			draw(rt, v.Field(i), depth-1)
		}
	default:
		switch {
		case v.CanInt():
			v.SetInt(rapid.Int64().Draw(rt, "int") >> (64 - t.Bits()))
		case v.CanUint():
			v.SetUint(rapid.Uint64().Draw(rt, "uint") >> (64 - t.Bits()))
		}
	}
}

// The members that jsonFields finds are those that encoding/json writes.
func TestJSONFields(t *testing.T) {
	type deep struct{ ID, Only int }
	type one struct {
		deep
		Both int
	}
	type two struct{ Both, Fine int }
	type named struct{ X int }
	type anonymousInt int
	type AnonymousInt int
	for _, v := range []any{
		everything{reflectedShadow: &reflectedShadow{}, Number: "1", Left: new(string), Small: 1, SliceO: []string{""}, SliceZ: []int{}, Double: new(*string)},
		struct {
			one
			two
			ID string `json:"id"`
		}{},
		struct {
			one
			two
			named `json:"named"`
			AnonymousInt
			anonymousInt
			fmt.Stringer
			Tagged int `json:"Fine"`
		}{},
		struct {
			*named
			Bad  int `json:"a'b"` //nolint:staticcheck // what encoding/json makes of it
			Word int `json:"größe"`
		}{named: &named{}},
	} {
		payload, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var members map[string]json.RawMessage
		if err := json.Unmarshal(payload, &members); err != nil {
			t.Fatal(err)
		}
		fields := jsonFields(reflect.TypeOf(v))
		for _, f := range fields {
			if _, ok := members[f.name]; !ok {
				t.Errorf("%T: %s is not written: %s", v, f.name, payload)
			}
			delete(members, f.name)
		}
		for name := range members {
			t.Errorf("%T: %s is not found", v, strconv.Quote(name))
		}
	}
}
