package kube

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/sluice-proxy/sluice/internal/testing/texttest"
)

func TestLibrariesLogAtDebugLevel(t *testing.T) {
	for _, tc := range []struct {
		level slog.Level
		want  []string
	}{
		{slog.LevelInfo, nil},
		{slog.LevelDebug, lines(
			`DEBUG "Failed to watch" a=1 logger=UnhandledError g.err=lost g.reflector=nodes`,
			`DEBUG plain a=1 g.b=2`,
		)},
	} {
		t.Run(tc.level.String(), func(t *testing.T) {
			f := &testSource{t: t, log: &texttest.Buffer{}}
			inner := slog.NewTextHandler(f.log, &slog.HandlerOptions{Level: tc.level})
			h := demoted{inner}.WithAttrs([]slog.Attr{slog.Int("a", 1)})
			ctx := klog.NewContext(t.Context(), logr.FromSlogHandler(h.WithGroup("g")))
			utilruntime.HandleErrorWithContext(ctx, errors.New("lost"), "Failed to watch", "reflector", "nodes")
			klog.FromContext(ctx).Info("plain", "b", 2)
			klog.FromContext(ctx).V(8).Info("too much")
			got := f.logLines()
			if len(got) > 0 { // the position of the logger name depends on the library
				got[0] = strings.Replace(got[0], "g.logger", "logger", 1)
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("log (-want +got):\n%s", d)
			}
		})
	}
}

// A reflector logs nothing about the choice to list.
func TestListingIsNoFault(t *testing.T) {
	f := &testSource{t: t, log: &texttest.Buffer{}}
	log := logr.FromSlogHandler(demoted{slog.NewTextHandler(f.log, &slog.HandlerOptions{Level: slog.LevelDebug})})
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	cache.NewReflectorWithOptions(listing{}, &corev1.Node{}, store, cache.ReflectorOptions{Logger: &log})
	if got := f.logLines(); len(got) > 0 {
		t.Errorf("the log has %q", got)
	}
}

func TestProcessLogIsDemoted(t *testing.T) {
	t.Cleanup(klog.ClearLogger)
	f := &testSource{t: t, log: &texttest.Buffer{}}
	DemoteLibraries(slog.New(slog.NewTextHandler(f.log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	klog.ErrorS(errors.New("lost"), "Structured")
	klog.Warning("plain")
	if d := cmp.Diff(lines("DEBUG Structured err=lost", "DEBUG plain"), f.logLines()); d != "" {
		t.Errorf("log (-want +got):\n%s", d)
	}
	DemoteLibraries(slog.New(slog.NewTextHandler(f.log, nil)))
	klog.ErrorS(errors.New("lost"), "Structured again")
	if n := len(f.logLines()); n != 2 {
		t.Errorf("%d lines, want no further line:\n%s", n, f.log)
	}
}

func TestClockEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := contextClock{done: ctx}
	select {
	case <-c.After(time.Millisecond):
	case <-time.After(30 * time.Second):
		t.Error("a pause does not end by itself")
	}
	long := c.After(time.Hour)
	cancel()
	select {
	case <-long:
	case <-time.After(30 * time.Second):
		t.Error("a pause does not end with the context")
	}
}
