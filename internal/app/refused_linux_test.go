package app

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/admin"
	"github.com/sluice-proxy/sluice/internal/answer/inspect"
	"github.com/sluice-proxy/sluice/internal/testing/kerneltest"
	"github.com/sluice-proxy/sluice/internal/testing/texttest"
)

// A map that another program created with a size for 12 frontends accepts no more of them. The other Services are
// reported by name in the log, in Events, by status, get and the metrics, and are written once the kernel accepts them.
func TestServicesThatTheKernelRejectsAreReported(t *testing.T) {
	const size, services = 12, 20
	var log texttest.Buffer
	o := options(t, "--manifests="+manifests(t, manyServices(services)))
	o.NetNS, o.Log = kerneltest.Namespace(t), slog.New(slog.NewTextHandler(&log, nil))
	runNft(t, o.NetNS, "add table ip sluice")
	runNft(t, o.NetNS, fmt.Sprintf("add map ip sluice fronts { type ipv4_addr . inet_proto . inet_service : classid; "+
		"size %d; }", size))
	await := runWithEvents(t, o)
	status := func() (s inspect.Status) {
		_ = admin.Dial(admin.Options{NetNS: o.NetNS}).Get(t.Context(), "/status", nil, &s) // not up yet
		return s
	}
	eventually(t, func() bool { return status().Refused == services-size })

	const reason, command = "the kernel rejects its rules", "add element ip sluice fronts"
	e := await(func(e inspect.Event) bool { return e.Kind == "Service" })
	if e.Namespace != "many" || !strings.Contains(e.Note, reason) || !strings.Contains(e.Note, command) {
		t.Errorf("event %+v, want one about a Service with %q and %q", e, reason, command)
	}
	if text := log.String(); !strings.Contains(text, "object=\"Service many/s") || !strings.Contains(text, reason) ||
		!strings.Contains(text, command) {
		t.Errorf("log without %q and %q:\n%s", reason, command, text)
	}
	list, err := admin.All[inspect.Service](admin.Dial(admin.Options{NetNS: o.NetNS}).Ask(t.Context(), "/services", nil))
	if err != nil {
		t.Fatal(err)
	}
	rejected := 0
	for _, svc := range list {
		if svc.State == inspect.NotProgrammed && strings.Contains(svc.Reason, reason) {
			rejected++
		}
	}
	if rejected != services-size {
		t.Errorf("get lists %d rejected Services, want %d: %+v", rejected, services-size, list)
	}
	counted := fmt.Sprintf("sluice_services_refused %d\n", services-size)
	if _, body := get(t, o.NetNS, "127.0.0.1:10249/metrics"); !strings.Contains(body, counted) {
		t.Errorf("metrics do not have %d refused Services", services-size)
	}
	if n := strings.Count(runNft(t, o.NetNS, "list", "map", "ip", "sluice", "fronts"), "many/s"); n != size {
		t.Errorf("%d frontends, want %d", n, size)
	}

	runNft(t, o.NetNS, "delete table ip sluice") // Sluice creates the map without a size
	eventually(t, func() bool { s := status(); return s.PID != 0 && s.Refused == 0 })
	if n := strings.Count(runNft(t, o.NetNS, "list", "map", "ip", "sluice", "fronts"), "many/s"); n != services {
		t.Errorf("%d frontends, want %d", n, services)
	}
}
