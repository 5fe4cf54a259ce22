package registry

import "github.com/seed-63e9a637/jetbus/registry/schema"

// References returns the registered versions that the text of a schema refers to, in order,
// without looking whether there are any. What they refer to in turn is not among them, and
// neither is what ParseReference refuses, as compiling the schema will. The error is that of a
// text that is no schema.
func References(text string) ([]Reference, error) {
	uris, err := schema.References(text)
	if err != nil {
		return nil, err
	}
	var out []Reference
	for _, uri := range uris {
		if to, err := ParseReference(uri); err == nil {
			out = append(out, to)
		}
	}
	return out, nil
}
