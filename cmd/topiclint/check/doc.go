// Package check holds what topiclint finds in programs that use JetBus, as one
// go/analysis analyzer ([New], [NewFlagged]).
//
// It goes by types, not by text. A topic is what is given to a parameter or a field
// of JetBus that is named topic: a call through an interface, an embedded bus or a
// method value is seen, and so are constants of other packages. A function whose
// parameter becomes a topic is a publisher or reader in its turn, in the packages
// that call it too.
//
// What topics there are is read from the source: each jetbus.TopicConfig and
// jetbus.Topic[T] with a constant Name, in the package and in those it imports. That
// is a part of the truth only, since others may declare topics too; it is the whole
// where one of these packages says //topiclint:catalog on a line of its own, or where
// a [Catalog] is given in a file. Only then can a topic be missing (BUS002).
//
// Each topic must have a schema (BUS003). The source shows which topics have one: those
// that a constant, a literal or a variable with a literal selects in registry.Bind or
// Registry.Register, or in wrappers of these. Without a catalog, a package that registers
// schemas for topics that are not constants, or that imports a whole registry, is assumed
// to register one for each topic that it or a package that it imports declares. The
// catalog adds schemas that are registered by other means. It can be the output of jetbus
// schema export, or with jetbus lint a running registry (--server). Such a catalog is
// partial: it does not make other topics unknown (BUS002).
//
// BUS003 is reported where a package declares the topic, and not in packages that import
// that package. If there is a catalog, a topic that no package declares is reported at
// each Event literal. Without a catalog, the schemas of the whole program must be known
// ([Options].Schemas): package drive reads them from all packages that it loads, so lint
// them together. go vet and golangci-lint see one package at a time, and report BUS003
// only with a catalog. A topic that has no schema on purpose is exempted where it is
// declared, as below. A snapshot (SnapshotOf) has the schema of its topic and needs none.
// Neither does a topic that is named after a version of a topic with a schema, such as
// orders.v1, because registry.DualWrite stores the events of orders in it.
//
// A finding is silenced by a comment in its line, or alone in the line above:
//
//	//nolint:topiclint // the reason
//
// Test files, and packages that import testing, are not checked unless asked for,
// because tests break rules on purpose; generated files never.
//
// Of the checks that were thought of, these are not here:
//
//   - BUS013 does not ask for a Stop: canceling the context of a Subscribe is one. It
//     finds subscriptions that nothing can end.
//   - BUS014 does not follow paths: a handler with ManualAck may give its event to
//     others. It finds those that touch nothing by which anybody could settle it.
//   - BUS015 (the topic's ".vN" against the version of its schema) is left out: the two
//     count different things, a break and a step within it.
//   - The same group in two places of a program (a part of BUS011) is left out: that is
//     how a group gets its second member.
package check

import "strings"

// A Rule is one check.
type Rule struct {
	ID      string // BUS and three digits
	Name    string // in a few words
	Help    string // what is wrong with what it finds, and what to do
	Default bool   // on unless switched off; the others find what is only often wrong
}

// rules are all checks in the order of their ids.
var rules = []Rule{
	{"BUS001", "invalid topic", "The bus refuses the name. Segments consist of a-z, 0-9, '_' and '-', separated by dots; -fix makes letters small.", true},
	{"BUS002", "unknown topic", "The catalog does not have the topic, and its name has no version (.v2). Needs a catalog that is complete.", true},
	{"BUS003", "no schema", "Neither the catalog nor the program has a schema for the topic. Register one (registry.Bind, jetbus schema register), give the schemas of the registry as the catalog, or put //nolint:topiclint with the reason where the topic is declared.", true},
	{"BUS004", "topic that is no constant", "Nothing can be said about the topic. Use a constant, or say //topiclint:dynamic in that line.", false},
	{"BUS005", "invalid header", "The bus refuses the name, or it may meet somebody else's. Names of your own are x- and small letters; others are content-type, traceparent and tracestate; -fix makes letters small.", true},
	{"BUS006", "error of a publish ignored", "The event may not have been stored, and nobody knows. Handle the error, or assign it to _ and say why.", true},
	{"BUS007", "handler without its context", "What is begun with context.Background in a handler goes on when the lease is lost. Use the handler's context.", true},
	{"BUS008", "payload without JSON", "encoding/json refuses the type, or writes nothing of it. Give the topic a Codec or change the type.", true},
	{"BUS009", "two types for a topic", "The topic carries another Go type elsewhere.", true},
	{"BUS010", "event without a key", "In a compacted topic all events without a key are those of one key: each replaces the one before.", true},
	{"BUS011", "invalid group", "The bus refuses the name. Groups consist of letters, digits, '_', '-' and '.', the dot neither first nor last.", true},
	{"BUS012", "error swallowed by a handler", "A handler that returns nil acknowledges the event. Return the error, or jetbus.Drop with the reason.", false},
	{"BUS013", "subscription without an end", "Its context is never canceled, and what could stop it is thrown away.", true},
	{"BUS014", "event never settled", "With ManualAck the handler must settle the event, or give it to somebody who does.", true},
	{"BUS016", "deprecated topic", "The topic is to be used no more.", true},
	{"BUS017", "secret in a payload", "The name of a field says that it holds a secret, and events are kept and copied. Tag the field `bus:\"redact\"` if it does not.", false},
	{"BUS018", "tombstone in a log", "Only compacted topics, and those with keys in subjects, whose state can be read, know tombstones.", true},
	{"BUS019", "upcaster or projection that depends on more than the event", "The time, or chance, makes each run and each replica differ. Take it from the event.", true},
	{"BUS020", "another schema version", "The event's header has a version of the schema that is not the latest in the catalog.", false},
}

// Rules returns all checks in the order of their ids. The slice is the caller's.
func Rules() []Rule { return append([]Rule(nil), rules...) }

// selection is the ids of the checks that are on.
type selection map[string]bool

// parseSelection reads a list of checks, as Options.Checks has it.
func parseSelection(list string) (selection, error) {
	on := make(selection)
	for _, r := range rules {
		on[r.ID] = r.Default
	}
	for item := range strings.SplitSeq(list, ",") {
		item = strings.TrimSpace(item)
		id, off := strings.CutPrefix(item, "-")
		known := id == "all" || id == ""
		for _, r := range rules {
			if id == "all" || id == r.ID {
				on[r.ID], known = !off, true
			}
		}
		if !known {
			return nil, optionf("no check %q: checks are BUS001 to BUS020 without BUS015, and all; with a - before it a check is off", item)
		}
	}
	return on, nil
}
