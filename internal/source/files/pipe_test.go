package files

import (
	"fmt"
	"os"
	"testing"
)

// Standard input and pipes are read once and never again.
func TestPipe(t *testing.T) {
	read, w, err := os.Pipe()
	must(t, err)
	defer read.Close()
	go func() {
		_, _ = w.WriteString(svc("a", "10.0.0.1"))
		_ = w.Close()
	}()
	path := fmt.Sprintf("/dev/fd/%d", read.Fd())
	if _, err := os.Stat(path); err != nil {
		t.Skipf("only where %s is a pipe: %v", path, err)
	}
	r := run(t, path)
	r.waitFor(view{"a": "[10.0.0.1] "})
}
