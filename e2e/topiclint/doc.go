// Package topiclint tests the linter with the go command, which loads and vets the
// packages it looks at. What needs none is tested in cmd/topiclint.
package topiclint
