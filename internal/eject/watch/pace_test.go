package watch

import (
	"testing"
	"time"
)

// Polls take a hundredth of a CPU. While a decision is near they may use up a credit.
func TestPace(t *testing.T) {
	p := &pacer{left: credit}
	for range 10 {
		if got := p.pause(poll{cpu: 10 * time.Millisecond, read: read{walks: 1}, pause: period}); got < time.Second {
			t.Fatalf("a pause of %s, want a second", got)
		}
	}
	total := time.Duration(0)
	for range 1000 {
		total += p.pause(poll{cpu: 10 * time.Millisecond, read: read{walks: 1}, pause: period, near: period})
	}
	if total < 500*time.Second {
		t.Errorf("1,000 polls of 10 ms near decisions take %s, want 500 s at least", total)
	}
	if got := p.pause(poll{cpu: 400 * time.Millisecond, read: read{1, 200_000}, pause: period}); got < 40*time.Second {
		t.Errorf("a pause of %s after 200,000 entries", got)
	}
}

// The number of IDs is bounded: of more connections, a sample is compared.
func TestAnsweredIsBounded(t *testing.T) {
	var a answered
	for id := range uint32(500_000) {
		a.add(id * 2_654_435_761)
	}
	if len(a.ids) > maxAnswered || len(a.ids) < maxAnswered/16 {
		t.Errorf("%d IDs", len(a.ids))
	}
	var s subject
	s.compare(a, time.Unix(1, 0))
	s.compare(a, time.Unix(2, 0))
	if s.Take(s.observed).Succeeded {
		t.Error("the same connections count as new ones")
	}
}
