package bpf

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// An update for which the kernel has no memory is repeated a bounded number of times; other errors are not. Linux 6.1
// of test/uml returns ENOMEM now and then.
func TestUpdatesAreRetried(t *testing.T) {
	none := fmt.Errorf("update: %w", unix.ENOMEM)
	for _, c := range []struct {
		name  string
		errs  []error // the last one repeats
		tries int
		want  error
		took  time.Duration
	}{
		{"written", []error{nil}, 1, nil, 0},
		{"soon", []error{none, none, nil}, 3, nil, 3 * time.Millisecond},
		{"never", []error{none}, 8, unix.ENOMEM, 127 * time.Millisecond},
		{"full then", []error{none, unix.E2BIG}, 2, unix.E2BIG, time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, tries := time.Now(), 0
				err := retried(func() error {
					tries++
					return c.errs[min(tries, len(c.errs))-1]
				})
				if took := time.Since(began); tries != c.tries || !errors.Is(err, c.want) || took != c.took {
					t.Errorf("%d tries in %s: %v, want %d in %s: %v", tries, took, err, c.tries, c.took, c.want)
				}
			})
		})
	}
}
