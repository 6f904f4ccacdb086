package process

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestDescriptorLimit(t *testing.T) {
	var want unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &want); err != nil {
		t.Fatal(err)
	}
	if got, err := DescriptorLimit(); err != nil || uint64(got) != min(want.Cur, 1<<31-1) {
		t.Errorf("got %d, %v, want %d", got, err, want.Cur)
	}
}
