// Package rest serves a registry over HTTP as Confluent's Schema Registry does, so that
// clients and tools for that work with it. A subject is a topic, a schema a JSON Schema.
//
//	GET             /subjects                                  ?subjectPrefix &deleted &deletedOnly &offset &limit
//	POST, DELETE    /subjects/{topic}                          look a schema up (?deleted); delete all versions (?permanent)
//	GET, POST       /subjects/{topic}/versions                 their numbers; register
//	GET, DELETE     /subjects/{topic}/versions/{n}             a version (n may be latest); delete it (?permanent)
//	GET             /subjects/{topic}/versions/{n}/schema      the text alone
//	GET             /subjects/{topic}/versions/{n}/referencedby
//	GET             /schemas                                   ?subjectPrefix &deleted &latestOnly &offset &limit
//	GET             /schemas/ids/{id}                          and .../schema, .../subjects, .../versions
//	GET             /schemas/types
//	POST            /compatibility/subjects/{topic}/versions   and .../{n}: would it be registered? (?verbose)
//	GET, PUT, DELETE /config, /config/{topic}                  the level; the member "model" is this registry's own
//	GET, PUT, DELETE /mode, /mode/{topic}                      READWRITE or READONLY
//
// What differs: schemas refer to others as "schema://<topic>/<n>", which is the name of a
// reference, too; an absent schemaType is JSON, and there is no other; contexts, rule sets,
// aliases and the mode IMPORT do not exist. Errors are {"error_code", "message"} with the
// numbers of Confluent's. Compatibility is that of package registry: a proof.
package rest
