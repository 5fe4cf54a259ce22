package schema

// ValidateReader is Validate in the model Declared, on the reader's side: properties
// that additionalProperties or unevaluatedProperties forbid by being false are
// passed over, as a reader with fixed types does. It is what [Compare] speaks of
// when it proves that new accepts what old does. A schema without such a form, since
// one of its $ref names such a keyword, is taken as it is written.
func (s *Schema) ValidateReader(payload []byte) error {
	r, err := s.reader()
	if err != nil {
		r = s
	}
	return r.Validate(payload)
}
