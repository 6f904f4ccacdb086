package iptables

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const twoTables = "*filter\n:KUBE-FIRST - [0:0]\nCOMMIT\n*nat\n:KUBE-SECOND - [0:0]\nCOMMIT\n"

// A restore that has begun is completed when the context ends, and no other is started.
// Here the context ends after the first of two tables.
func TestAStartedRestoreIsCompleted(t *testing.T) {
	both(t, func(t *testing.T, variant Variant) {
		h := newHost(t, variant)
		folder := t.TempDir()
		replaceRestore(t, h.tools, `cat >`+folder+`/input
sed '/^\*nat/,$d' `+folder+`/input | "$restore" "$@" || exit 1
touch `+folder+`/half
until [ -e `+folder+`/go ]; do sleep 0.01; done
sed -n '/^\*nat/,$p' `+folder+`/input | exec "$restore" "$@"`)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		done := make(chan error, 1)
		go func() { done <- h.tools.Restore(ctx, IPv4, []byte(twoTables)) }()
		for {
			if _, err := os.Stat(filepath.Join(folder, "half")); err == nil {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
		stop()
		if err := os.WriteFile(filepath.Join(folder, "go"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Errorf("the started restore: %v", err)
		}
		if _, ok := h.read(IPv4, "nat")["KUBE-SECOND"]; !ok {
			t.Error("the second table was not committed")
		}
		if err := h.tools.Restore(ctx, IPv4, []byte(small)); !errors.Is(err, context.Canceled) {
			t.Errorf("a restore after the end of the context: %v, want %v", err, context.Canceled)
		}
		if _, ok := h.read(IPv4, "nat")["A"]; ok {
			t.Error("a restore was started after the end of the context")
		}
	})
}

// A program that does not exit is killed some time after the context has ended, and no process is left.
func TestAStoppedProgramHasADeadline(t *testing.T) {
	ctx, stop := context.WithCancelCause(t.Context())
	tools := &Tools{opts: Options{Path: "/usr/bin:/bin"}}
	asked := errors.New("asked to stop")
	process := 0
	err := tools.run(ctx, call{
		path: "/bin/sleep", args: []string{"1000"}, finish: 50 * time.Millisecond,
		started: func(pid int) func() { process = pid; stop(asked); return func() {} },
	})
	if !errors.Is(err, asked) {
		t.Errorf("got %v, want that it was stopped", err)
	}
	if unix.Kill(process, 0) == nil {
		t.Errorf("process %d still exists", process)
	}
}
