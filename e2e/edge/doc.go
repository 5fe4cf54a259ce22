// Package edge lets clients and tools that others wrote use the gateway: the HTTP client of
// the CloudEvents SDK, a client of Confluent's Schema Registry, a validator of OpenAPI 3.1, and
// the JSON Schema of AsyncAPI 3.0. Hostile clients attack the gateway of a jetbus serve.
package edge
