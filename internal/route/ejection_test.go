package route

import (
	"testing"

	"github.com/sluice-proxy/sluice/internal/cluster"
)

func TestParseEjection(t *testing.T) {
	for text, want := range map[string]cluster.Ejection{
		"on": {Clients: 2, Row: 5}, "off": {}, "clients=3": {Clients: 3, Row: 5},
		"row=7": {Clients: 2, Row: 7}, "clients=4, row=16": {Clients: 4, Row: 16},
	} {
		if got, err := ParseEjection(text); got != want || err != nil {
			t.Errorf("%q: %+v, %v, want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "yes", "ON", "clients=1", "row=17", "clients=2,", "clients", "hosts=2", "row=-3", "row=300",
	} {
		if got, err := ParseEjection(text); err == nil || got.On() {
			t.Errorf("%q: %+v, want an error", text, got)
		}
	}
}
