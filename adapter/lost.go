package adapter

import "context"

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// untilLost makes a context that ends with the connection, too.
func untilLost(ctx context.Context, lost <-chan struct{}) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() { // ends with the request, which calls release
		defer close(done)
		select {
		case <-lost:
			cancel(errLost)
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancel(nil)
		<-done
	}
}
