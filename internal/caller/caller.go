// Package caller names the client for which a program publishes. The gateway sets the name in the context of a
// publish. Scarce resources, such as the validation of expensive payloads, are shared among
// callers.
package caller

import "context"

type key struct{}

// With returns a context with the name of a caller.
func With(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, key{}, name)
}

// Of returns the caller's name, or "" if the program publishes for itself.
func Of(ctx context.Context) string {
	name, _ := ctx.Value(key{}).(string)
	return name
}
