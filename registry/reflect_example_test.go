package registry_test

import (
	"fmt"

	"github.com/seed-63e9a637/jetbus/registry"
)

func ExampleReflect() {
	type Heartbeat struct {
		Host string   `json:"host" jsonschema:"minLength=1"`
		CPU  uint8    `json:"cpu" jsonschema:"maximum=100"`
		Tags []string `json:"tags"`
		Note *string  `json:"note,omitempty"`
	}
	text, err := registry.Reflect[Heartbeat]()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(text)
	// Output:
	// {
	//   "$schema": "https://json-schema.org/draft/2020-12/schema",
	//   "properties": {
	//     "host": {
	//       "type": "string",
	//       "minLength": 1
	//     },
	//     "cpu": {
	//       "type": "integer",
	//       "maximum": 100,
	//       "minimum": 0
	//     },
	//     "tags": {
	//       "items": {
	//         "type": "string"
	//       },
	//       "type": [
	//         "array",
	//         "null"
	//       ]
	//     },
	//     "note": {
	//       "type": "string"
	//     }
	//   },
	//   "additionalProperties": false,
	//   "type": "object",
	//   "required": [
	//     "host",
	//     "cpu",
	//     "tags"
	//   ]
	// }
}
