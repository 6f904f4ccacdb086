package iptables

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
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

// A program that does not exit is killed some time after the context has ended.
func TestAStoppedProgramHasADeadline(t *testing.T) {
	ctx, stop := context.WithCancelCause(t.Context())
	tools := &Tools{opts: Options{Path: "/usr/bin:/bin"}}
	asked := errors.New("asked to stop")
	err := tools.run(ctx, call{
		path: "/bin/sleep", args: []string{"1000"}, finish: 50 * time.Millisecond,
		started: func(int) func() { stop(asked); return func() {} },
	})
	if !errors.Is(err, asked) || !strings.Contains(err.Error(), "killed after 50ms more") {
		t.Errorf("got %v, want that it was killed", err)
	}
}
