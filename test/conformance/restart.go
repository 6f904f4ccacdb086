//go:build linux

package conformance

// changeUnseen adds and replaces objects while the proxy is not running.
func changeUnseen(docs ...string) step {
	return func(e *env) error { return e.change(e.texts(docs), nil) }
}
