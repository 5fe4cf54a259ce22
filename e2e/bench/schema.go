package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/santhosh-tekuri/jsonschema/v5"

	"github.com/seed-63e9a637/jetbus/registry/schema"
)

// A heartbeat of six fields, its schema, and the schema with an optional field
// more and a value more.
const (
	heartbeat       = `{"pid":4711,"name":"indexer","host":"node-3","cpu_pct":12.5,"mem_mb":812.25,"status":"alive"}`
	heartbeatSchema = `{"type":"object","properties":{"pid":{"type":"integer","minimum":0},"name":{"type":"string","minLength":1},"host":{"type":"string"},"cpu_pct":{"type":"number","minimum":0},"mem_mb":{"type":"number","minimum":0},"status":{"enum":["alive","stale"]}},"required":["pid","name","host","cpu_pct","mem_mb","status"],"additionalProperties":false}`
	heartbeatNext   = `{"type":"object","properties":{"pid":{"type":"integer","minimum":0},"name":{"type":"string","minLength":1},"host":{"type":"string"},"cpu_pct":{"type":"number","minimum":0},"mem_mb":{"type":"number","minimum":0},"sid":{"type":"string"},"status":{"enum":["alive","stale","gone"]}},"required":["pid","name","host","cpu_pct","mem_mb","status"],"additionalProperties":false}`
)

// inMemory makes a job's run of something that needs no broker.
func inMemory(prepare func() (func() error, error)) func(context.Context, *env, int, *clock) error {
	return func(_ context.Context, _ *env, n int, c *clock) error {
		one, err := prepare()
		if err != nil {
			return err
		}
		c.start()
		for range n {
			if err := one(); err != nil {
				return err
			}
		}
		c.stop(n)
		return nil
	}
}

// validate holds a payload to a schema.
func validate(count int) job {
	return job{name: "bus", count: count, run: inMemory(func() (func() error, error) {
		s, err := schema.Compile(heartbeatSchema, schema.Options{})
		return func() error { return s.Validate([]byte(heartbeat)) }, err
	})}
}

// rawValidate does so with the library alone, which wants the payload decoded.
func rawValidate(count int) job {
	return job{name: "library", count: count, run: inMemory(func() (func() error, error) {
		s, err := jsonschema.CompileString("schema:///heartbeat", heartbeatSchema)
		return func() error {
			decoder := json.NewDecoder(bytes.NewReader([]byte(heartbeat)))
			decoder.UseNumber()
			var v any
			if err := decoder.Decode(&v); err != nil {
				return err
			}
			return s.Validate(v)
		}, err
	})}
}

// verdict proves that a schema may follow another.
func verdict(count int) job {
	return job{name: "bus", count: count, run: inMemory(func() (func() error, error) {
		before, err := schema.Compile(heartbeatSchema, schema.Options{})
		if err != nil {
			return nil, err
		}
		after, err := schema.Compile(heartbeatNext, schema.Options{})
		return func() error {
			if v := schema.Compare(before, after, schema.Strict); v.Result != schema.Proved {
				return fmt.Errorf("the verdict is %s", v.Result)
			}
			return nil
		}, err
	})}
}
