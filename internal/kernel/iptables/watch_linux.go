package iptables

import "context"

// Watch waits for the context.
func (t *Tools) Watch(ctx context.Context, _ func(chain string) bool, subscribed func(), _ func(Edit)) error {
	subscribed()
	<-ctx.Done()
	return nil
}
