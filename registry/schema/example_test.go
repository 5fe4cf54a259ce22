package schema_test

import (
	"errors"
	"fmt"

	"github.com/seed-63e9a637/jetbus/registry/schema"
)

func ExampleCompile() {
	_, err := schema.Compile(`{"properties": {"email": {"pattern": "^(?!test).*@"}}}`, schema.Options{})
	fmt.Println(err)
	fmt.Println(errors.Is(err, schema.ErrInvalidSchema))
	// Output:
	// invalid schema: at #/properties/email/pattern: pattern "^(?!test).*@": lookahead (?! is not supported: patterns are RE2
	// true
}

func ExampleSchema_Validate() {
	s, err := schema.Compile(`{
		"type": "object",
		"properties": {"pid": {"type": "integer", "minimum": 1}, "host": {"type": "string"}},
		"required": ["pid", "host"]
	}`, schema.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = s.Validate([]byte(`{"pid": 0}`))
	if invalid, ok := errors.AsType[*schema.InvalidError](err); ok {
		for _, v := range invalid.Violations {
			fmt.Printf("%q %s: %s\n", v.InstancePath, v.KeywordPath, v.Message)
		}
	}
	// Output:
	// "" #/required: lacks the required property "host"
	// "/pid" #/properties/pid/minimum: must be >= 1 but found 0
}

func ExampleSchema_ValidateDeclared() {
	s, err := schema.Compile(`{"properties": {"host": {"type": "string"}}}`, schema.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	payload := []byte(`{"host": "api-1", "hots": "api-1"}`)
	fmt.Println(s.Validate(payload))
	fmt.Println(s.ValidateDeclared(payload))
	// Output:
	// <nil>
	// invalid payload: the property "hots" is not declared
}
