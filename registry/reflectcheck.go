package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	js "github.com/invopop/jsonschema"

	"github.com/seed-63e9a637/jetbus/registry/schema"
)

// checkShape checks that a schema accepts what encoding/json writes for a value of
// t that is zero, and for one in which everything is set.
func checkShape(t reflect.Type, s *js.Schema) error {
	text, err := schemaText(shapeOf(s))
	if err != nil {
		return err
	}
	compiled, err := schema.Compile(text, schema.Options{})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidType, err)
	}
	zero, full := reflect.New(t), reflect.New(t)
	fillValue(full.Elem(), fillDepth)
	for _, v := range []struct {
		what  string
		value any
	}{{"the zero value", zero.Elem().Interface()}, {"a value in which everything is set", full.Elem().Interface()}} {
		payload, err := json.Marshal(v.value)
		if _, ok := errors.AsType[*json.UnsupportedTypeError](err); ok {
			return fmt.Errorf("%w: %w", ErrInvalidType, err)
		}
		if err != nil {
			continue // a method of the type wants another value
		}
		if err := compiled.Validate(payload); err != nil {
			return fmt.Errorf("%w: its schema does not accept what encoding/json writes for %s: %w", ErrInvalidType, v.what, err)
		}
	}
	return nil
}

// shapeOf is a schema without what constrains values: it has types, properties and
// what is required.
func shapeOf(s *js.Schema) *js.Schema {
	if s == nil || s == js.TrueSchema || s == js.FalseSchema {
		return s
	}
	shape := &js.Schema{
		Version: s.Version, ID: s.ID, Anchor: s.Anchor, Ref: s.Ref, DynamicRef: s.DynamicRef, Type: s.Type, Required: s.Required,
		Items: shapeOf(s.Items), AdditionalProperties: shapeOf(s.AdditionalProperties),
		AllOf: shapesOf(s.AllOf), PrefixItems: shapesOf(s.PrefixItems),
	}
	if reflect.DeepEqual(s, &js.Schema{}) {
		return shape
	}
	if types, ok := s.Extras["type"]; ok {
		shape.Extras = map[string]any{"type": types}
	}
	if s.Properties == nil { // else it is of tags, and says which properties go together
		shape.AnyOf = shapesOf(s.AnyOf)
	} else {
		shape.Properties = js.NewProperties()
		for p := s.Properties.Oldest(); p != nil; p = p.Next() {
			shape.Properties.Set(p.Key, shapeOf(p.Value))
		}
	}
	if s.PatternProperties != nil {
		shape.PatternProperties = map[string]*js.Schema{}
		for name, of := range s.PatternProperties {
			shape.PatternProperties[name] = shapeOf(of)
		}
	}
	if s.Definitions != nil {
		shape.Definitions = js.Definitions{}
		for name, of := range s.Definitions {
			shape.Definitions[name] = shapeOf(of)
		}
	}
	return shape
}

func shapesOf(list []*js.Schema) []*js.Schema {
	var shapes []*js.Schema
	for _, s := range list {
		shapes = append(shapes, shapeOf(s))
	}
	return shapes
}

// fillDepth is how deep fillValue goes into types that hold themselves.
const fillDepth = 6

// fillValue sets what it can to something that is not zero. Values that write
// themselves keep their zero.
func fillValue(v reflect.Value, depth int) {
	t := v.Type()
	if !v.CanSet() || depth == 0 {
		return
	}
	if t == timeType {
		v.Set(reflect.ValueOf(time.Date(2006, 1, 2, 15, 4, 5, 0, time.UTC)))
		return
	}
	if p := reflect.PointerTo(t); p.Implements(marshalerType) || p.Implements(textMarshalerType) {
		return
	}
	switch t.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float32, reflect.Float64:
		v.SetFloat(1.5)
	case reflect.String:
		v.SetString("1") // a json.Number, too
	case reflect.Interface:
		if t.NumMethod() == 0 {
			v.Set(reflect.ValueOf("a"))
		}
	case reflect.Pointer:
		v.Set(reflect.New(t.Elem()))
		fillValue(v.Elem(), depth-1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(t, 1, 1))
		fillValue(v.Index(0), depth-1)
	case reflect.Array:
		for i := range v.Len() {
			fillValue(v.Index(i), depth-1)
		}
	case reflect.Map:
		key, value := reflect.New(t.Key()).Elem(), reflect.New(t.Elem()).Elem()
		fillValue(key, depth-1)
		fillValue(value, depth-1)
		v.Set(reflect.MakeMap(t))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for _, f := range v.Fields() {
			fillValue(f, depth-1)
		}
	default:
		switch {
		case v.CanInt():
			v.SetInt(1)
		case v.CanUint():
			v.SetUint(1)
		}
	}
}
