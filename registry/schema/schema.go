package schema

// Schema is a compiled schema. It does not change and may be used by several
// goroutines at once.
type Schema struct {
	text        string
	draft       Draft
	fingerprint string
	root        *node
	doc         any                // the parsed text; not to be changed
	references  map[string]*Schema // those of Options.References that are in use

	heaviest     heaviest
	declarations *declarations
	reading      readerForm
	described    *declaration // of the whole value
}

// Draft is a version of JSON Schema, as the last part of its address names it:
// "2020-12", "draft-07".
type Draft string

// The drafts.
const (
	Draft4    Draft = "draft-04"
	Draft6    Draft = "draft-06"
	Draft7    Draft = "draft-07"
	Draft2019 Draft = "2019-09"
	Draft2020 Draft = "2020-12"
)

// Options of Compile. The zero value is a schema on its own, of draft 2020-12
// unless its $schema says otherwise.
type Options struct {
	// Draft is that of a schema without $schema. Defaults to Draft2020.
	Draft Draft
	// References are the schemas that $ref may name besides the schema's own
	// parts, by their absolute URI ("schema://orders.created/1"). What they refer
	// to in turn is taken from here, or else from what they were compiled with. Nil: none.
	References map[string]*Schema
}

// Text returns the schema as it was given to Compile.
func (s *Schema) Text() string { return s.text }

// Draft returns the version of JSON Schema that the schema is read as.
func (s *Schema) Draft() Draft { return s.draft }

// Fingerprint returns the sha256, in hexadecimal, of the schema's draft, its
// canonical form (see Canonical) and the fingerprints of all it refers to. Two texts
// that differ in space and order alone have one fingerprint.
func (s *Schema) Fingerprint() string { return s.fingerprint }
