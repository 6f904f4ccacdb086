package conntrack

import (
	"slices"

	"github.com/sluice-proxy/sluice/internal/route"
)

// Flows that many scenarios have: to the first and second backend, and one made while nobody translated it.
const (
	one  = "17 10.0.0.1:7 > 10.96.0.10:53 via 10.1.0.1:5353"
	two  = "17 10.0.0.2:7 > 10.96.0.10:53 via 10.1.0.2:5353"
	none = "17 10.0.0.3:7 > 10.96.0.10:53"
)

// scenarios returns what is run against the table in memory and the kernel's.
func scenarios() []scenario {
	return slices.Concat(backendScenarios(), serviceScenarios(), hostScenarios(), handshakeScenarios())
}

// handshakeScenarios: connections that may be stuck in their beginning.
func handshakeScenarios() []scenario {
	const (
		stuck4, stuck6 = "6 10.0.0.1:7 > 10.96.0.10:80", "6 [fd00::1]:7 > [fd96::10]:80"
		balanced       = "web/tcp: 10.96.0.10:80 [fd96::10]:80 lb:203.0.113.5:80 nodePort:30080 ="
		backends       = " 10.1.0.1:80 [fd01::1]:80"
	)
	others := []string{
		"6 10.0.0.2:7 > 10.96.0.10:80 via 10.1.0.1:80",
		"6 10.0.0.3:7 > 10.96.0.10:80 via 10.1.0.1:80 answered",
		"6 10.0.0.4:7 > 10.96.0.10:80 answered", // was another's then, and goes on
		"6 10.0.0.5:7 > 10.96.0.10:81",
		"6 10.0.0.6:7 > 10.96.0.11:80",
		"17 10.0.0.7:7 > 10.96.0.10:80",
		"132 10.0.0.8:7 > 10.96.0.10:80",
		"6 203.0.113.9:7 > 192.0.2.1:30080",    // the host answers there
		"6 10.0.0.9:7 > 10.96.0.10:80 one way", // answers take another way
		"6 203.0.113.9:7 > 203.0.113.5:80",     // somebody else may answer yet
	}
	return []scenario{{
		name:  "connections that began before their service",
		after: []string{balanced + backends},
		gone:  []string{stuck4, stuck6}, kept: slices.Clone(others),
	}, {
		name:   "connections that began before there was a backend",
		before: []string{balanced},
		after:  []string{balanced + backends},
		gone:   []string{stuck4, stuck6}, kept: slices.Clone(others),
	}, {
		name:   "connections that begin are let alone while backends come and go",
		before: []string{balanced + backends},
		after:  []string{balanced + " 10.1.0.2:80 [fd01::2]:80"},
		kept:   append(slices.Clone(others), stuck4, stuck6),
	}, {
		name:   "connections that begin where a service ends",
		before: []string{balanced + backends},
		after:  []string{"-web"},
		kept:   append(slices.Clone(others), stuck4, stuck6),
	}, {
		name:  "associations that began before their service",
		after: []string{"web/sctp: 10.96.0.10:80 [fd96::10]:80 = 10.1.0.1:80 [fd01::1]:80"},
		gone:  []string{"132 10.0.0.8:7 > 10.96.0.10:80", "132 [fd00::8]:7 > [fd96::10]:80"},
		kept:  []string{stuck4, "17 10.0.0.7:7 > 10.96.0.10:80", "132 10.0.0.9:7 > 10.96.0.10:80 via 10.1.0.1:80"},
	}}
}

// backendScenarios: backends that come and go (S-197 to S-209).
func backendScenarios() []scenario {
	return []scenario{{
		name:   "S-197 node port gets its first backend",
		before: []string{"dns: 10.96.0.10:53 nodePort:30053 ="},
		after:  []string{"dns: 10.96.0.10:53 nodePort:30053 = 10.1.0.1:5353"},
		gone:   []string{"17 203.0.113.9:7 > 192.0.2.1:30053"},
		kept:   []string{"17 203.0.113.9:7 > 192.0.2.1:30054", "17 [2001:db8::9]:7 > [2001:db8::1]:30053"},
	}, {
		name:   "S-198 node port moves from one backend to another",
		before: []string{"dns: 10.96.0.10:53 nodePort:30053 = 10.1.0.1:5353"},
		after:  []string{"dns: 10.96.0.10:53 nodePort:30053 = 10.1.0.2:5353"},
		gone:   []string{"17 203.0.113.9:7 > 192.0.2.1:30053 via 10.1.0.1:5353", one},
		kept:   []string{"17 203.0.113.8:7 > 192.0.2.1:30053 via 10.1.0.2:5353", two},
	}, {
		name:   "S-199 S-200 S-201 cluster address moves from one backend to another",
		before: []string{"dns: 10.96.0.10:53 = 10.1.0.1:5353"},
		after:  []string{"dns: 10.96.0.10:53 = 10.1.0.2:5353"},
		gone:   []string{one, "17 192.0.2.1:7 > 10.96.0.10:53 via 10.1.0.1:5353"},
		kept:   []string{two},
	}, {
		name:   "S-202 load balancer address moves from one backend to another",
		before: []string{"dns: 10.96.0.10:53 lb:203.0.113.5:53 = 10.1.0.1:5353 [fd01::1]:53"},
		after:  []string{"dns: 10.96.0.10:53 lb:203.0.113.5:53 = 10.1.0.2:5353 [fd01::1]:53"},
		gone:   []string{"17 203.0.113.9:7 > 203.0.113.5:53 via 10.1.0.1:5353"},
		kept: []string{
			"17 203.0.113.9:8 > 203.0.113.5:53 via 10.1.0.2:5353", "17 203.0.113.9:9 > 203.0.113.6:53 via 10.1.0.1:5353",
		},
	}, {
		name:   "S-203 S-211 cluster address gets its first backend",
		before: []string{"dns: 10.96.0.10:53 [fd96::10]:53 ="},
		after:  []string{"dns: 10.96.0.10:53 [fd96::10]:53 = 10.1.0.1:5353 [fd01::1]:53"},
		gone:   []string{none, "17 [fd00::1]:7 > [fd96::10]:53"},
		kept:   []string{"17 10.0.0.3:7 > 10.96.0.11:53", "6 10.0.0.3:7 > 10.96.0.10:53"},
	}, {
		name:   "S-204 target port changes",
		before: []string{"dns: 10.96.0.10:53 nodePort:30053 = 10.1.0.1:5353"},
		after:  []string{"dns: 10.96.0.10:53 nodePort:30053 = 10.1.0.1:5354"},
		gone:   []string{one, "17 203.0.113.9:7 > 198.51.100.1:30053 via 10.1.0.1:5353"},
		kept:   []string{"17 10.0.0.4:7 > 10.96.0.10:53 via 10.1.0.1:5354"},
	}, {
		name:   "S-205 S-207 serving backends keep their flows when others come and go",
		before: []string{"dns: 10.96.0.10:53 = 10.1.0.1:5353 10.1.0.3:5353"},
		after:  []string{"dns: 10.96.0.10:53 = 10.1.0.1:5353 10.1.0.2:5353"},
		gone:   []string{"17 10.0.0.9:7 > 10.96.0.10:53 via 10.1.0.3:5353"},
		kept:   []string{one, two},
	}, {
		name:   "S-206 backend stops serving",
		before: []string{"dns: 10.96.0.10:53 [fd96::10]:53 = 10.1.0.1:5353 10.1.0.2:5353 [fd01::1]:53 [fd01::2]:53"},
		after:  []string{"dns: 10.96.0.10:53 [fd96::10]:53 = 10.1.0.1:5353 [fd01::2]:53"},
		gone:   []string{two, "17 [fd00::1]:7 > [fd96::10]:53 via [fd01::1]:53"},
		kept:   []string{one, "17 [fd00::2]:7 > [fd96::10]:53 via [fd01::2]:53"},
	}, {
		name:   "S-208 S-209 other protocols and ports",
		before: []string{"dns: 10.96.0.10:53 = 10.1.0.1:5353"},
		after:  []string{"dns: 10.96.0.10:53 ="},
		gone:   []string{one},
		kept: []string{
			"6 10.0.0.1:7 > 10.96.0.10:53 via 10.1.0.1:5353",
			"132 10.0.0.1:7 > 10.96.0.10:53 via 10.1.0.1:5353",
			"17 10.0.0.1:7 > 10.96.0.10:54 via 10.1.0.1:5353",
		},
	}}
}

// serviceScenarios: Services and frontends that come and go.
func serviceScenarios() []scenario {
	return []scenario{{
		name:   "S-210 S-213 the last backend goes",
		before: []string{"dns: 10.96.0.10:53 lb:203.0.113.5:53 external:203.0.113.6:53 nodePort:30053 = 10.1.0.1:5353"},
		after:  []string{"dns: 10.96.0.10:53 lb:203.0.113.5:53 external:203.0.113.6:53 nodePort:30053 ="},
		gone: []string{
			one,
			"17 203.0.113.9:1 > 203.0.113.5:53 via 10.1.0.1:5353",
			"17 203.0.113.9:2 > 203.0.113.6:53 via 10.1.0.1:5353",
			// Upstream keeps this one; its packets would go nowhere for ever.
			"17 203.0.113.9:3 > 192.0.2.1:30053 via 10.1.0.1:5353",
		},
		kept: []string{"17 203.0.113.9:4 > 192.0.2.1:30053"},
	}, {
		name:   "S-212 the same port at a foreign host",
		before: []string{"dns: 10.96.0.10:53 nodePort:32000 ="},
		after:  []string{"dns: 10.96.0.10:53 nodePort:32000 = 10.1.0.1:5353"},
		gone:   []string{"17 203.0.113.9:7 > 192.0.2.1:32000"},
		kept: []string{
			"17 192.0.2.1:7 > 203.0.113.77:32000",
			"17 10.0.0.1:7 > 203.0.113.77:32000 via 10.9.9.9:32000",
			"17 127.0.0.1:7 > 127.0.0.1:32000",
		},
	}, {
		name:   "a new service takes over flows made before it",
		before: []string{"web: 10.96.0.99:80 = 10.1.0.9:80"},
		after:  []string{"dns: 10.96.0.10:53 nodePort:30053 = 10.1.0.1:5353"},
		gone:   []string{two, none, "17 203.0.113.9:7 > 192.0.2.1:30053"},
		kept:   []string{one, "17 10.0.0.1:7 > 10.96.0.99:80 via 10.1.0.8:80"},
	}, {
		name:   "a new service without backends spares a server of the host",
		before: []string{},
		after:  []string{"dns: 10.96.0.10:53 nodePort:30053 ="},
		gone:   []string{none, one, "17 203.0.113.9:7 > 192.0.2.1:30053 via 10.1.0.9:53"},
		kept:   []string{"17 203.0.113.8:7 > 192.0.2.1:30053"},
	}, {
		name:   "a service is deleted",
		before: []string{"dns: 10.96.0.10:53 nodePort:30053 = 10.1.0.1:5353", "web: 10.96.0.99:80 = 10.1.0.1:5353"},
		after:  []string{"-dns"},
		gone:   []string{one, "17 203.0.113.9:7 > 192.0.2.1:30053 via 10.1.0.1:5353"},
		kept: []string{
			"17 203.0.113.8:7 > 192.0.2.1:30053",
			"17 203.0.113.7:7 > 192.0.2.1:30053 via 10.7.7.7:53", // translated by somebody else
			"17 10.0.0.1:7 > 10.96.0.99:80 via 10.1.0.1:5353",
			none,
		},
	}, {
		name:   "a frontend is taken away",
		before: []string{"dns: 10.96.0.10:53 lb:203.0.113.5:53 = 10.1.0.1:5353"},
		after:  []string{"dns: 10.96.0.10:53 = 10.1.0.1:5353"},
		gone:   []string{"17 203.0.113.9:7 > 203.0.113.5:53 via 10.1.0.1:5353"},
		kept:   []string{one, "17 203.0.113.8:7 > 203.0.113.5:53"},
	}, {
		name:   "a frontend changes hands",
		before: []string{"a: lb:203.0.113.5:53 = 10.1.0.1:53 10.1.0.2:53", "b: 10.96.0.2:53 = 10.1.0.2:53 10.1.0.3:53"},
		after: []string{
			"b: 10.96.0.2:53 lb:203.0.113.5:53 = 10.1.0.2:53 10.1.0.3:53", "a: 10.96.0.1:53 = 10.1.0.1:53 10.1.0.2:53",
		},
		gone: []string{"17 203.0.113.9:1 > 203.0.113.5:53 via 10.1.0.1:53"},
		kept: []string{
			"17 203.0.113.9:2 > 203.0.113.5:53 via 10.1.0.2:53", "17 203.0.113.9:3 > 203.0.113.5:53 via 10.1.0.3:53",
		},
	}}
}

// hostScenarios: where the host serves node ports.
func hostScenarios() []scenario {
	return []scenario{{
		name:   "node ports at chosen addresses only",
		host:   func() route.Host { return onlyAt("192.0.2.1") },
		before: []string{"dns: 10.96.0.10:53 nodePort:30053 = 10.1.0.1:5353"},
		after:  []string{"dns: 10.96.0.10:53 nodePort:30053 = 10.1.0.2:5353"},
		gone:   []string{"17 203.0.113.9:7 > 192.0.2.1:30053 via 10.1.0.1:5353"},
		kept:   []string{"17 203.0.113.9:7 > 198.51.100.1:30053 via 10.1.0.1:5353"},
	}, {
		name:      "an address stops serving node ports",
		host:      func() route.Host { return onlyAt("192.0.2.1", "198.51.100.1") },
		afterHost: func() route.Host { return onlyAt("192.0.2.1") },
		before:    []string{"dns: 10.96.0.10:53 nodePort:30053 = 10.1.0.1:5353"},
		gone:      []string{"17 203.0.113.9:7 > 198.51.100.1:30053 via 10.1.0.1:5353"},
		kept:      []string{"17 203.0.113.9:7 > 192.0.2.1:30053 via 10.1.0.1:5353", one},
	}, {
		name:      "every local address becomes two, and the service changes",
		afterHost: func() route.Host { return onlyAt("192.0.2.1") },
		before:    []string{"dns: 10.96.0.10:53 nodePort:30053 nodePort:30054 = 10.1.0.1:5353 10.1.0.2:5353"},
		after:     []string{"dns: 10.96.0.10:53 nodePort:30053 = 10.1.0.1:5353"},
		gone: []string{
			two,
			"17 203.0.113.9:7 > 198.51.100.1:30053 via 10.1.0.1:5353",
			"17 203.0.113.9:7 > 192.0.2.1:30054 via 10.1.0.1:5353",
		},
		kept: []string{one, "17 203.0.113.9:7 > 192.0.2.1:30053 via 10.1.0.1:5353", "17 203.0.113.7:7 > 192.0.2.1:30054"},
	}, {
		name:   "link-local node port",
		before: []string{"dns: [fd96::10]:53 nodePort:30053 = [fd01::1]:53"},
		after:  []string{"dns: [fd96::10]:53 nodePort:30053 = [fd01::2]:53"},
		gone:   []string{"17 [fe80::9]:7 > [fe80::1]:30053 via [fd01::1]:53"},
		kept:   []string{"17 [fe80::1]:7 > [fe80::77]:30053"},
	}}
}
