package app

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
	"github.com/sluice-proxy/sluice/internal/route"
)

func TestIgnoredServicesAreLogged(t *testing.T) {
	name := cluster.Name{Namespace: "default", Name: "web"}
	svc := func(reason string) *route.Service { return &route.Service{Name: name, Ignored: reason} }
	for _, tt := range []struct {
		what     string
		old, now *route.Service
		want     string
	}{
		{"a new one", nil, svc("headless"), "service=default/web reason=headless"},
		{"the same reason", svc("headless"), svc("headless"), ""},
		{"another reason", svc("headless"), svc("ExternalName"), "reason=ExternalName"},
		{"programmed from now on", svc("headless"), svc(""), ""},
		{"deleted", svc("headless"), nil, ""},
	} {
		var out bytes.Buffer
		i := notProgrammed{slog.New(slog.NewTextHandler(&out, nil)), slog.LevelInfo}
		i.Applied(route.Change{Touched: []route.Touch{{Name: name, Old: tt.old, New: tt.now}}})
		if !strings.Contains(out.String(), tt.want) || (out.Len() > 0) != (tt.want != "") {
			t.Errorf("%s: logged %q, want %q", tt.what, out.String(), tt.want)
		}
	}
}
