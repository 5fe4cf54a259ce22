// The suites and benchmarks that need several heavy modules. They are a module
// of their own so that nothing heavy for tests reaches users of the bus.
module github.com/seed-63e9a637/jetbus/e2e

go 1.26.0

require github.com/seed-63e9a637/jetbus v0.0.0

replace github.com/seed-63e9a637/jetbus => ../
