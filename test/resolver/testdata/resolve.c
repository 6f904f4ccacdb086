// Resolves names by getaddrinfo of the C library, and prints a line for each look-up:
// its milliseconds, the name, and the addresses, or "!" and the error.
//
// usage: resolve 4|6|0 ROUNDS NAME...
//
// Family 0 is both. With 0 rounds it goes on until its standard input ends.
#define _POSIX_C_SOURCE 200809L
#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

static long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void resolve(const char *name, int family)
{
	struct addrinfo hints = { .ai_family = family, .ai_socktype = SOCK_STREAM };
	struct addrinfo *list = NULL, *a;
	char text[INET6_ADDRSTRLEN];
	long began = now();
	int code = getaddrinfo(name, NULL, &hints, &list);

	printf("%ld %s", now() - began, name);
	if (code)
		printf(" ! %s", gai_strerror(code));
	for (a = list; a; a = a->ai_next) {
		const void *from = a->ai_family == AF_INET
			? (const void *)&((struct sockaddr_in *)a->ai_addr)->sin_addr
			: (const void *)&((struct sockaddr_in6 *)a->ai_addr)->sin6_addr;
		printf(" %s", inet_ntop(a->ai_family, from, text, sizeof text));
	}
	printf("\n");
	if (list)
		freeaddrinfo(list);
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	int family = *argv[1] == '4' ? AF_INET : *argv[1] == '6' ? AF_INET6 : AF_UNSPEC;
	int rounds = atoi(argv[2]), i, n;
	struct pollfd input = { .fd = 0, .events = POLLIN };

	for (n = 0; rounds == 0 || n < rounds; n++) {
		for (i = 3; i < argc; i++)
			resolve(argv[i], family);
		if (rounds == 0 && poll(&input, 1, 10) > 0)
			break;
	}
	return 0;
}
