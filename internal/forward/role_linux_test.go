package forward

// roles are what copies of the test program do.
func roles() map[string]func() error {
	return map[string]func() error{}
}
