package machine

import (
	"testing"
	"time"
)

// The median decides, and bounds are never shorter than on the reference machine.
func TestSlowdown(t *testing.T) {
	for _, test := range []struct {
		ratios []float64
		want   float64
		text   string
	}{
		{nil, 1, "TEST_SLOWDOWN=1.0 ()"},
		{[]float64{0.4, 0.5, 1.1, 0.9}, 1, "TEST_SLOWDOWN=1.0 (a 0.4, b 0.5, c 1.1, d 0.9)"},
		{[]float64{3, 300, 2.1, 1.24}, 2.6, "TEST_SLOWDOWN=2.6 (a 3.0, b 300.0, c 2.1, d 1.2)"},
		{[]float64{3, 2, 2.26}, 2.3, "TEST_SLOWDOWN=2.3 (a 3.0, b 2.0, c 2.3)"},
		{[]float64{40, 50}, 10, "TEST_SLOWDOWN=10.0 (a 40.0, b 50.0)"},
	} {
		var f Figures
		for i, r := range test.ratios {
			f = append(f, Figure{Name: string(rune('a' + i)), Ratio: r})
		}
		if got := f.Slowdown(); got != test.want || f.String() != test.text {
			t.Errorf("%v: got %v and %q, want %v and %q", test.ratios, got, f, test.want, test.text)
		}
	}
}

// A calibration has every kind of work that needs no privilege, and ends.
func TestMeasure(t *testing.T) {
	f := Measure()
	if len(f) < len(everywhere()) {
		t.Errorf("got %v, want at least %d kinds of work", f, len(everywhere()))
	}
	for _, one := range f {
		if one.Time <= 0 || one.Ratio <= 0 {
			t.Errorf("got %+v, want a time", one)
		}
	}
}

func TestFastest(t *testing.T) {
	a, b := Figures{{"a", 1, 1}, {"b", 4, 4}}, Figures{{"a", 2, 2}, {"b", 3, 3}}
	got := Fastest(a, b)
	if want := (Figures{{"a", 1, 1}, {"b", 3, 3}}); len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestVariable(t *testing.T) {
	for _, text := range []string{"0.5", "11", "x", "NaN", "2,5", "-1"} {
		if f, err := parse(text); err == nil {
			t.Errorf("%s=%s was accepted as %v", Variable, text, f)
		}
	}
	if f, err := parse("2.5"); err != nil || f != 2.5 {
		t.Errorf("got %v, %v, want 2.5", f, err)
	}
	if got, most := Scale(time.Second), MaxSlowdown*time.Second; got < time.Second || got > most {
		t.Errorf("a second is scaled to %v, want 1 s to %v", got, most)
	}
}
