package registry

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"

	js "github.com/invopop/jsonschema"
)

// jsonField is a member of the object that encoding/json writes for a struct.
type jsonField struct {
	name   string
	goName string // with those of the embedded structs it is in
	typ    reflect.Type
	tag    reflect.StructTag
	index  []int
	tagged bool // the name is that of a tag

	quoted    bool // the tag's option string, where it counts
	omitNil   bool // a nil is left out, and never written as null
	mayBeLeft bool // out
}

// jsonFields returns the members that encoding/json writes, in the order of the
// fields. Of those with one name the least nested counts, among them the one
// whose name is that of a tag; where that leaves several, none does.
func jsonFields(t reflect.Type) []jsonField {
	type embedded struct {
		typ    reflect.Type
		index  []int
		goName string
		mayBe  bool // nil
	}
	next := []embedded{{typ: t}}
	visited := map[reflect.Type]bool{}
	counts := map[reflect.Type]int{}
	var all []jsonField
	for len(next) > 0 {
		level := next
		next = nil
		here := counts
		counts = map[reflect.Type]int{}
		for _, s := range level {
			if visited[s.typ] {
				continue
			}
			visited[s.typ] = true
			for i := range s.typ.NumField() {
				f := s.typ.Field(i)
				member, inner := fieldOf(f)
				member.index = append(slices.Clone(s.index), i)
				member.goName = s.goName + f.Name
				member.mayBeLeft = member.mayBeLeft || s.mayBe
				switch {
				case inner != nil:
					if counts[inner]++; counts[inner] == 1 {
						next = append(next, embedded{inner, member.index, member.goName + ".", s.mayBe || f.Type.Kind() == reflect.Pointer})
					}
				case member.typ != nil:
					all = append(all, member)
					if here[s.typ] > 1 { // embedded several times: its fields hide one another
						all = append(all, member)
					}
				}
			}
		}
	}
	return dominant(all)
}

// fieldOf reads a field: it is a member, or a struct whose fields are, or neither.
func fieldOf(f reflect.StructField) (member jsonField, inner reflect.Type) {
	plain := f.Type
	if plain.Kind() == reflect.Pointer && plain.Name() == "" {
		plain = plain.Elem()
	}
	if !f.IsExported() && (!f.Anonymous || plain.Kind() != reflect.Struct) {
		return jsonField{}, nil
	}
	tag := f.Tag.Get("json")
	if tag == "-" {
		return jsonField{}, nil
	}
	name, rest, _ := strings.Cut(tag, ",")
	options := strings.Split(rest, ",")
	if !validName(name) {
		name = ""
	}
	if name == "" && f.Anonymous && plain.Kind() == reflect.Struct {
		return jsonField{}, plain
	}
	member = jsonField{name: cmp.Or(name, f.Name), typ: f.Type, tag: f.Tag, tagged: name != ""}
	empty, zero := slices.Contains(options, "omitempty"), slices.Contains(options, "omitzero")
	_, ownZero := methods[interface{ IsZero() bool }](f.Type)
	member.mayBeLeft = empty || zero
	member.omitNil = empty || zero && !ownZero
	member.quoted = slices.Contains(options, "string") && quotable(plain)
	return member, nil
}

// quotable reports whether the option string counts for a type.
func quotable(t reflect.Type) bool {
	if p := reflect.PointerTo(t); p.Implements(marshalerType) || p.Implements(textMarshalerType) {
		return false
	}
	return t.Kind() == reflect.Bool || t.Kind() == reflect.String || t.Kind() == reflect.Float32 || t.Kind() == reflect.Float64 || integer(t.Kind()) != nil
}

// validName reports whether encoding/json takes a tag's name.
func validName(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(c rune) bool {
		return !strings.ContainsRune("!#$%&()*+-./:;<=>?@[]^_{|}~ ", c) && !unicode.IsLetter(c) && !unicode.IsDigit(c)
	})
}

// dominant drops the fields that others hide.
func dominant(all []jsonField) []jsonField {
	byName := map[string][]jsonField{}
	for _, f := range all {
		byName[f.name] = append(byName[f.name], f)
	}
	var kept []jsonField
	for _, list := range byName {
		slices.SortStableFunc(list, func(a, b jsonField) int {
			return cmp.Or(cmp.Compare(len(a.index), len(b.index)), cmp.Compare(rank(a), rank(b)))
		})
		if len(list) == 1 || len(list[0].index) != len(list[1].index) || list[0].tagged != list[1].tagged {
			kept = append(kept, list[0])
		}
	}
	slices.SortFunc(kept, func(a, b jsonField) int { return slices.Compare(a.index, b.index) })
	return kept
}

// rank is 0 for a field that hides others of its depth.
func rank(f jsonField) int {
	if f.tagged {
		return 0
	}
	return 1
}

// structure describes a struct; one with a name becomes a definition.
func (r *reflector) structure(t reflect.Type, at string) (*js.Schema, error) {
	if t.Name() == "" {
		return r.object(t, at)
	}
	if _, ok := r.defs[t]; !ok {
		r.define(t)
		s, err := r.object(t, at)
		if err != nil {
			return nil, err
		}
		r.defs[t] = s
	}
	return r.refTo(t), nil
}

// object describes a struct in place.
func (r *reflector) object(t reflect.Type, at string) (*js.Schema, error) {
	if at != "" {
		at += "."
	}
	fields := jsonFields(t)
	properties := make([]*js.Schema, len(fields))
	nullable := make([]bool, len(fields))
	for i, f := range fields {
		var err error
		if properties[i], nullable[i], err = r.describe(f.typ, at+f.goName); err != nil {
			return nil, err
		}
		if f.quoted {
			properties[i] = &js.Schema{Type: "string"}
		}
		nullable[i] = nullable[i] && !f.omitNil
	}
	s := r.withTags(fields, properties)
	for i, f := range fields {
		p, ok := s.Properties.Get(f.name)
		if !ok {
			if !r.open {
				return nil, invalidType(at+f.goName, `is written by encoding/json and hidden by jsonschema:"-": use json:"-"`)
			}
			continue
		}
		if nullable[i] || slices.Contains(schemaTags(f.tag), "nullable") {
			s.Properties.Set(f.name, orNull(p))
		}
	}
	if e, ok := methods[extender](t); ok {
		e.JSONSchemaExtend(s)
	}
	return s, nil
}

// withTags makes an object of properties and of what the fields' tags say. The tags
// are read by the library, from a struct made for it: flat, with types that stand
// for the properties by their length.
func (r *reflector) withTags(fields []jsonField, properties []*js.Schema) *js.Schema {
	flat := make([]reflect.StructField, len(fields))
	for i, f := range fields {
		option := ""
		if f.mayBeLeft {
			option = ",omitempty"
		}
		tags := slices.DeleteFunc(schemaTags(f.tag), func(s string) bool { return s == "nullable" })
		flat[i] = reflect.StructField{
			Name: "F" + strconv.Itoa(i),
			Type: reflect.ArrayOf(i, reflect.TypeFor[struct{}]()),
			Tag: reflect.StructTag(fmt.Sprintf("json:%q jsonschema:%q jsonschema_description:%q jsonschema_extras:%q",
				option, strings.Join(tags, ","), f.tag.Get("jsonschema_description"), f.tag.Get("jsonschema_extras"))),
		}
	}
	library := js.Reflector{
		Anonymous:                 true,
		AllowAdditionalProperties: r.open,
		KeyNamer: func(name string) string {
			i, _ := strconv.Atoi(name[1:])
			return fields[i].name
		},
		Mapper: func(t reflect.Type) *js.Schema {
			if t.Kind() != reflect.Array {
				return nil
			}
			return properties[t.Len()]
		},
	}
	s := library.ReflectFromType(reflect.StructOf(flat))
	s.Version, s.Definitions = "", nil
	return s
}

func schemaTags(tag reflect.StructTag) []string { return strings.Split(tag.Get("jsonschema"), ",") }
