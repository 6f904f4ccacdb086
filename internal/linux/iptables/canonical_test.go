package iptables

import "testing"

// Each list has spellings of one rule; the last is the canonical one.
func TestCanonical(t *testing.T) {
	for _, spellings := range [][]string{
		{
			`-d 172.30.0.41/32 -p tcp -m comment --comment  "a/b:c cluster IP"  -m tcp --dport 80 -j KUBE-SVC-X`,
			`-d 172.30.0.41/32 -p tcp -m comment --comment "a/b:c cluster IP" -m tcp --dport 80 -j KUBE-SVC-X`,
		},
		{`-m statistic --mode random --probability 0.33333333349 -j A`},
		{
			`-m recent --rcheck --seconds 10800 --reap --name S --mask 255.255.255.255 --rsource -j S`,
			`-m recent --rcheck --seconds 10800 --reap --name S --mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff --rsource -j S`,
			`-m recent --rcheck --seconds 10800 --reap --name S -j S`,
		},
		{`-p tcp -m recent --set --name S -m tcp -j DNAT --to-destination [fd00::1]:80`},
		{`-m mark ! --mark 0x4000/0x4000 -j MARK --set-xmark 0x4000/0x4000`},
		{`-j REJECT --reject-with icmp-port-unreachable`, `-j REJECT --reject-with icmp6-port-unreachable`, `-j REJECT`},
		{`-j REJECT --reject-with tcp-reset`},
		{`-m comment --comment "plain" -j A`, `-m comment --comment plain -j A`},
		{`-m comment --comment "it's \"so\" \\ -j X" -g A`, `-m comment --comment "it\'s \"so\" \\ -j X" -g A`},
		{`-m comment --comment -x -j A`},
		{`-m comment --comment -s -j A`},
		{`-m comment --comment "" -j A`},
		{`-m string --string "--rsource" --algo bm -j A`},
		{`-m string --string "a\" b" --algo bm -j A`},
		{`! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP`},
		{`-j MASQUERADE --random-fully`},
		{`-m nfacct --nfacct-name  dropped_pkts -j DROP`, `-m nfacct --nfacct-name dropped_pkts -j DROP`},
		{``},
		{`-j`},
		{`-s`},
		{`--rsource`, ``},
		{`-m comment --comment "not closed`, `-m comment --comment "not closed"`},
	} {
		want := spellings[len(spellings)-1]
		for _, s := range spellings {
			if got := Canonical(s); got != want {
				t.Errorf("%s\nis %s\nwant %s", s, got, want)
			}
		}
	}
}

// Different rules have different canonical spellings.
func TestCanonicalKeepsDifferences(t *testing.T) {
	seen := map[string]string{}
	for _, rule := range []string{
		`-d 10.0.0.1 -j A`, `-d 10.0.0.2 -j A`, `! -d 10.0.0.1 -j A`, `-s 10.0.0.1 -j A`, `-d 10.0.0.0/24 -j A`,
		`-d 10.0.0.1 -g A`,
		`-m statistic --mode random --probability 0.3333333 -j A`, `-m statistic --mode random --probability 0.3333334 -j A`,
		`-m mark --mark 0x4000/0x4000 -j A`, `-m mark --mark 0x4000 -j A`, `-m mark ! --mark 0x4000 -j A`,
		`-m recent --name A --set`, `-m recent --name A --rcheck`, `-m recent --name A --set --rdest`,
		`-m recent --name A --set --mask 255.255.255.0`,
		`-m comment --comment a -j A`, `-m comment --comment "a b" -j A`, `-m comment --comment "a  b" -j A`, `-p tcp -j A`,
		`-p udp -j A`, `-p tcp -m tcp -j A`,
		`-m conntrack --ctstate NEW -j A`, `-m conntrack --ctstate NEW,INVALID -j A`, `-m conntrack ! --ctstate NEW -j A`,
	} {
		c := Canonical(rule)
		if other, ok := seen[c]; ok {
			t.Errorf("%s and %s are both %s", rule, other, c)
		}
		seen[c] = rule
	}
}

func TestTarget(t *testing.T) {
	for rule, want := range map[string]string{
		`-m comment --comment "x -j Y" -j KUBE-A`:     "KUBE-A",
		`-m comment --comment -j -g KUBE-A`:           "KUBE-A",
		`-j LOG --log-prefix "a -j b"`:                "LOG",
		`-m recent --set --name X`:                    "",
		`-p tcp -j DNAT --to-destination 10.0.0.1:80`: "DNAT",
		`-j`: "",
	} {
		if got := Target(rule); got != want {
			t.Errorf("the target of %s is %q, want %q", rule, got, want)
		}
	}
}
