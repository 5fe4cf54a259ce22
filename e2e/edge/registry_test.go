package edge

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/sr"

	"github.com/seed-63e9a637/jetbus"
)

// Schemas of a topic: the second takes all that the first does, the third nothing of it.
const (
	one   = `{"type":"object","properties":{"id":{"type":"integer"}},"required":["id"]}`
	two   = `{"type":"object","properties":{"id":{"type":"number"}},"required":["id"]}`
	wrong = `{"type":"object","properties":{"id":{"type":"boolean"}},"required":["id"]}`
)

func jsonSchema(text string) sr.Schema { return sr.Schema{Schema: text, Type: sr.TypeJSON} }

// confluent is a client of Confluent's Schema Registry at the gateway.
func confluent(r *rig, as string) *sr.Client {
	r.Helper()
	patient := &http.Client{Timeout: limit} // its own waits for 5 s
	cl, err := sr.NewClient(sr.HTTPClient(patient), sr.URLs(r.url+"/v1/schemas"), sr.BearerToken(as))
	if err != nil {
		r.Fatal(err)
	}
	return cl
}

// fails reports whether the registry refused with that error.
func fails(err error, want *sr.Error) bool {
	e, ok := errors.AsType[*sr.ResponseError](err)
	return ok && e.SchemaError() == want
}

// TestRegistryClient registers, looks up, lists and compares.
func TestRegistryClient(t *testing.T) {
	r := newRig(t)
	cl := confluent(r, token)
	ctx := t.Context()
	first, err := cl.CreateSchema(ctx, "orders", jsonSchema(one))
	if err != nil || first.Subject != "orders" || first.Version != 1 || first.ID < 1 || first.Type != sr.TypeJSON || first.Schema.Schema != one {
		t.Fatalf("%+v, %v", first, err)
	}
	again, err := cl.CreateSchema(ctx, "orders", jsonSchema(" "+one+"\n"))
	if err != nil || again.Version != 1 || again.ID != first.ID {
		t.Errorf("%+v, %v", again, err)
	}
	second, err := cl.CreateSchema(ctx, "orders", jsonSchema(two))
	if err != nil || second.Version != 2 {
		t.Fatalf("%+v, %v", second, err)
	}
	elsewhere, err := cl.CreateSchema(ctx, "returns", jsonSchema(one))
	if err != nil || elsewhere.ID != first.ID || elsewhere.Version != 1 {
		t.Errorf("a schema has one id: %+v, %v", elsewhere, err)
	}
	if id, err := cl.RegisterSchema(ctx, "orders", jsonSchema(one), -1, -1); err != nil || id != first.ID {
		t.Errorf("%d, %v", id, err)
	}
	if _, err := cl.CreateSchema(ctx, "orders", jsonSchema(wrong)); !fails(err, sr.ErrIncompatibleSchema) {
		t.Errorf("%v", err)
	}
	if _, err := cl.CreateSchema(ctx, "orders", jsonSchema(`{"type":"nothing"}`)); !fails(err, sr.ErrInvalidSchema) {
		t.Errorf("%v", err)
	}
	if _, err := cl.CreateSchema(ctx, "orders", sr.Schema{Schema: `"string"`, Type: sr.TypeAvro}); !fails(err, sr.ErrInvalidSchema) {
		t.Errorf("Avro: %v", err)
	}
	if _, err := cl.CreateSchema(ctx, "or ders", jsonSchema(one)); !fails(err, sr.ErrInvalidSubject) {
		t.Errorf("%v", err)
	}

	if got, err := cl.LookupSchema(ctx, "orders", jsonSchema(one)); err != nil || got.Version != 1 || got.ID != first.ID {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := cl.LookupSchema(ctx, "orders", jsonSchema(wrong)); !fails(err, sr.ErrSchemaNotFound) {
		t.Errorf("%v", err)
	}
	if _, err := cl.LookupSchema(ctx, "nothing", jsonSchema(one)); !fails(err, sr.ErrSubjectNotFound) {
		t.Errorf("%v", err)
	}
	if got, err := cl.Subjects(ctx); err != nil || !slices.Equal(got, []string{"orders", "returns"}) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := cl.Subjects(sr.WithParams(ctx, sr.SubjectPrefix("ord"))); err != nil || !slices.Equal(got, []string{"orders"}) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := cl.SubjectVersions(ctx, "orders"); err != nil || !slices.Equal(got, []int{1, 2}) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := cl.SchemaByVersion(ctx, "orders", -1); err != nil || got.Version != 2 || got.Schema.Schema != two {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := cl.SchemaByVersion(ctx, "orders", 7); !fails(err, sr.ErrVersionNotFound) {
		t.Errorf("%v", err)
	}
	if got, err := cl.SchemaTextByVersion(ctx, "orders", 1); err != nil || got != one {
		t.Errorf("%s, %v", got, err)
	}
	if got, err := cl.SchemaByID(ctx, first.ID); err != nil || got.Schema != one || got.Type != sr.TypeJSON {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := cl.SchemaTextByID(ctx, second.ID); err != nil || got != two {
		t.Errorf("%s, %v", got, err)
	}
	if _, err := cl.SchemaByID(ctx, 9999); !fails(err, sr.ErrSchemaNotFound) {
		t.Errorf("%v", err)
	}
	if got, err := cl.SubjectsByID(ctx, first.ID); err != nil || !slices.Equal(got, []string{"orders", "returns"}) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := cl.SchemaVersionsByID(ctx, first.ID); err != nil || len(got) != 2 {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := cl.AllSchemas(ctx); err != nil || len(got) != 3 || got[0].Subject != "orders" || got[2].Subject != "returns" {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := cl.AllSchemas(sr.WithParams(ctx, sr.LatestOnly, sr.SubjectPrefix("o"))); err != nil || len(got) != 1 || got[0].Version != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := cl.Schemas(ctx, "orders"); err != nil || len(got) != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := cl.SupportedTypes(ctx); err != nil || !slices.Equal(got, []sr.SchemaType{sr.TypeJSON}) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := cl.Contexts(ctx); err != nil || !slices.Equal(got, []string{"."}) {
		t.Errorf("%v, %v", got, err)
	}
}

// TestRegistryClientSettings reads and sets levels and modes, and asks what is compatible.
func TestRegistryClientSettings(t *testing.T) {
	r := newRig(t)
	cl := confluent(r, token)
	ctx := t.Context()
	if _, err := cl.CreateSchema(ctx, "orders", jsonSchema(one)); err != nil {
		t.Fatal(err)
	}
	global := cl.Compatibility(ctx)[0]
	if global.Err != nil || global.Level == 0 {
		t.Errorf("%+v", global)
	}
	if got := cl.Compatibility(ctx, "orders")[0]; !fails(got.Err, sr.ErrSubjectLevelCompatibilityNotConfigured) {
		t.Errorf("%+v", got)
	}
	if got := cl.Compatibility(sr.WithParams(ctx, sr.DefaultToGlobal), "orders")[0]; got.Err != nil || got.Level != global.Level {
		t.Errorf("%+v", got)
	}
	check := func(version int, text string, want bool) {
		t.Helper()
		got, err := cl.CheckCompatibility(sr.WithParams(ctx, sr.Verbose), "orders", version, jsonSchema(text))
		if err != nil || got.Is != want || want != (len(got.Messages) == 0) {
			t.Errorf("%+v, %v", got, err)
		}
	}
	check(-1, two, true)
	check(-1, wrong, false)
	check(-2, wrong, false)
	check(1, two, true)
	for _, level := range []sr.CompatibilityLevel{sr.CompatNone, sr.CompatBackward, sr.CompatBackwardTransitive, sr.CompatForward, sr.CompatForwardTransitive, sr.CompatFull, sr.CompatFullTransitive} {
		if got := cl.SetCompatibility(ctx, sr.SetCompatibility{Level: level}, "orders")[0]; got.Err != nil || got.Level != level {
			t.Errorf("%v: %+v", level, got)
		}
		if got := cl.Compatibility(ctx, "orders")[0]; got.Err != nil || got.Level != level {
			t.Errorf("%v: %+v", level, got)
		}
		check(-1, wrong, level == sr.CompatNone)
	}
	if got := cl.ResetCompatibility(ctx, "orders")[0]; got.Err != nil {
		t.Errorf("%+v", got)
	}
	if got := cl.Compatibility(ctx, "orders")[0]; !fails(got.Err, sr.ErrSubjectLevelCompatibilityNotConfigured) {
		t.Errorf("%+v", got)
	}
	if got := cl.SetCompatibility(ctx, sr.SetCompatibility{Level: sr.CompatFull})[0]; got.Err != nil || got.Level != sr.CompatFull {
		t.Errorf("%+v", got)
	}
	if got := cl.Compatibility(ctx)[0]; got.Err != nil || got.Level != sr.CompatFull {
		t.Errorf("%+v", got)
	}
	if got := cl.SetMode(ctx, sr.ModeReadOnly, "orders")[0]; got.Err != nil || got.Mode != sr.ModeReadOnly {
		t.Errorf("%+v", got)
	}
	if _, err := cl.CreateSchema(ctx, "orders", jsonSchema(two)); !fails(err, sr.ErrOperationNotPermitted) {
		t.Errorf("%v", err)
	}
	if got := cl.ResetMode(ctx, "orders")[0]; got.Err != nil {
		t.Errorf("%+v", got)
	}
	if got := cl.Mode(ctx)[0]; got.Err != nil || got.Mode != sr.ModeReadWrite {
		t.Errorf("%+v", got)
	}
}

// TestRegistryClientDeletes deletes, softly and for good.
func TestRegistryClientDeletes(t *testing.T) {
	r := newRig(t)
	cl := confluent(r, token)
	ctx := t.Context()
	deleted := sr.WithParams(ctx, sr.ShowDeleted)
	var ids []int
	for _, text := range []string{one, two} {
		s, err := cl.CreateSchema(ctx, "orders", jsonSchema(text))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, s.ID)
	}
	if err := cl.DeleteSchema(ctx, "orders", 1, sr.HardDelete); !fails(err, sr.ErrSchemaVersionNotSoftDeleted) {
		t.Errorf("%v", err)
	}
	if err := cl.DeleteSchema(ctx, "orders", 1, sr.SoftDelete); err != nil {
		t.Fatal(err)
	}
	if err := cl.DeleteSchema(ctx, "orders", 1, sr.SoftDelete); !fails(err, sr.ErrSchemaVersionSoftDeleted) {
		t.Errorf("again: %v", err)
	}
	if _, err := cl.SchemaByVersion(ctx, "orders", 1); !fails(err, sr.ErrVersionNotFound) {
		t.Errorf("%v", err)
	}
	if got, err := cl.SchemaByVersion(deleted, "orders", 1); err != nil || got.Schema.Schema != one {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := cl.LookupSchema(ctx, "orders", jsonSchema(one)); !fails(err, sr.ErrSchemaNotFound) {
		t.Errorf("%v", err)
	}
	if got, err := cl.LookupSchema(deleted, "orders", jsonSchema(one)); err != nil || got.Version != 1 || got.ID != ids[0] {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := cl.SubjectVersions(ctx, "orders"); err != nil || !slices.Equal(got, []int{2}) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := cl.SubjectVersions(deleted, "orders"); err != nil || !slices.Equal(got, []int{1, 2}) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := cl.SubjectVersions(sr.WithParams(ctx, sr.DeletedOnly), "orders"); err != nil || !slices.Equal(got, []int{1}) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := cl.SchemaByID(ctx, ids[0]); err != nil || got.Schema != one {
		t.Errorf("events of the past need it: %+v, %v", got, err)
	}
	if err := cl.DeleteSchema(ctx, "orders", 1, sr.HardDelete); err != nil {
		t.Fatal(err)
	}
	if _, err := cl.SchemaByVersion(deleted, "orders", 1); !fails(err, sr.ErrVersionNotFound) {
		t.Errorf("%v", err)
	}
	if _, err := cl.DeleteSubject(ctx, "orders", sr.HardDelete); !fails(err, sr.ErrSubjectNotSoftDeleted) {
		t.Errorf("%v", err)
	}
	if got, err := cl.DeleteSubject(ctx, "orders", sr.SoftDelete); err != nil || !slices.Equal(got, []int{2}) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := cl.Subjects(deleted); err != nil || !slices.Equal(got, []string{"orders"}) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := cl.LookupSchema(deleted, "orders", jsonSchema(two)); err != nil || got.Version != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := cl.DeleteSubject(ctx, "orders", sr.SoftDelete); !fails(err, sr.ErrSubjectSoftDeleted) {
		t.Errorf("%v", err)
	}
	if got, err := cl.DeleteSubject(ctx, "orders", sr.HardDelete); err != nil || !slices.Equal(got, []int{2}) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := cl.Subjects(deleted); err != nil || len(got) != 0 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := cl.LookupSchema(deleted, "orders", jsonSchema(two)); !fails(err, sr.ErrSubjectNotFound) {
		t.Errorf("%v", err)
	}
	if s, err := cl.CreateSchema(ctx, "orders", jsonSchema(one)); err != nil || s.Version != 3 {
		t.Errorf("a number is never used twice: %+v, %v", s, err)
	}
}

// TestRegistryClientReferences registers a schema that refers to another, which is not deleted
// then; and what the client serializes with a registered schema is what the topic takes.
func TestRegistryClientReferences(t *testing.T) {
	r := newRig(t)
	cl := confluent(r, token)
	ctx := t.Context()
	if _, err := cl.CreateSchema(ctx, "address", jsonSchema(`{"type":"object","properties":{"street":{"type":"string"}},"required":["street"]}`)); err != nil {
		t.Fatal(err)
	}
	s := jsonSchema(`{"type":"object","properties":{"to":{"$ref":"schema://address/1"}}}`)
	s.References = []sr.SchemaReference{{Name: "schema://address/1", Subject: "address", Version: 1}}
	created, err := cl.CreateSchema(ctx, "orders", s)
	if err != nil || len(created.References) != 1 || created.References[0] != s.References[0] {
		t.Fatalf("%+v, %v", created, err)
	}
	by, err := cl.SchemaReferences(ctx, "address", 1)
	if err != nil || len(by) != 1 || by[0].Subject != "orders" {
		t.Errorf("%+v, %v", by, err)
	}
	if _, err := cl.DeleteSubject(ctx, "address", sr.SoftDelete); !fails(err, sr.ErrReferenceExists) {
		t.Errorf("%v", err)
	}
	s.References[0].Version = 9
	if _, err := cl.CreateSchema(ctx, "orders", s); !fails(err, sr.ErrInvalidSchema) {
		t.Errorf("%v", err)
	}
	r.ensure(jetbus.TopicConfig{Name: "orders"})
	if _, err := r.bus.Publish(ctx, jetbus.Event{Topic: "orders", Payload: []byte(`{"to":{"street":"a"}}`)}); err != nil {
		t.Error(err)
	}
}

// TestRegistryClientRefused has a token that does not count, and none.
func TestRegistryClientRefused(t *testing.T) {
	r := newRig(t)
	for _, as := range []string{strings.Repeat("x", 32), "y"} {
		_, err := confluent(r, as).Subjects(context.WithoutCancel(t.Context()))
		e, ok := errors.AsType[*sr.ResponseError](err)
		if !ok || e.StatusCode != 401 {
			t.Errorf("%v", err)
		}
	}
}
