/* The calls of the IP helper API that Wine 8 lacks. All others are forwarded to the library of Wine, which
 * the test copies to wineiphlpapi.dll. A server of the test adds and deletes addresses, at port SERVER of
 * 127.0.0.1: a request is "add 10.96.0.10 32 1", and the answer an error code. So the kernel beneath Wine has
 * the address, and Wine lists it. The last number is SkipAsSource, which Wine does not list: the server answers
 * "list 10.96.0.10 32 0" with it.
 *
 * A row is read as the headers of mingw-w64 declare it, so that the caller's row is checked too. */
#include <winsock2.h>
#include <ws2tcpip.h>
#include <windows.h>
#include <iphlpapi.h>
#include <netioapi.h>
#include <stdio.h>
#include <stdlib.h>

static DWORD ask(const char *verb, const MIB_UNICASTIPADDRESS_ROW *row)
{
	char text[128], addr[64], answer[16] = "";
	WSADATA data;
	struct sockaddr_in to = {0};
	SOCKET s;
	int n, family = row->Address.si_family;
	const void *bytes = family == AF_INET ? (const void *)&row->Address.Ipv4.sin_addr : (const void *)&row->Address.Ipv6.sin6_addr;

	if (WSAStartup(MAKEWORD(2, 2), &data)) return ERROR_GEN_FAILURE;
	if (!inet_ntop(family, (void *)bytes, addr, sizeof addr)) return ERROR_INVALID_PARAMETER;
	if (!row->InterfaceLuid.Value) return ERROR_INVALID_PARAMETER;
	sprintf(text, "%s %s %d %d\n", verb, addr, row->OnLinkPrefixLength, row->SkipAsSource);
	s = socket(AF_INET, SOCK_STREAM, 0);
	to.sin_family = AF_INET;
	to.sin_port = htons(SERVER);
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (connect(s, (struct sockaddr *)&to, sizeof to)) return ERROR_GEN_FAILURE;
	send(s, text, strlen(text), 0);
	n = recv(s, answer, sizeof answer - 1, 0);
	closesocket(s);
	return n > 0 ? atoi(answer) : ERROR_GEN_FAILURE;
}

__declspec(dllexport) void WINAPI InitializeUnicastIpAddressEntry(MIB_UNICASTIPADDRESS_ROW *row)
{
	memset(row, 0, sizeof *row);
	row->PrefixOrigin = IpPrefixOriginUnchanged;
	row->SuffixOrigin = IpSuffixOriginUnchanged;
	row->ValidLifetime = row->PreferredLifetime = 0xffffffff;
	row->OnLinkPrefixLength = 255;
}

__declspec(dllexport) DWORD WINAPI CreateUnicastIpAddressEntry(const MIB_UNICASTIPADDRESS_ROW *row) { return ask("add", row); }

__declspec(dllexport) DWORD WINAPI DeleteUnicastIpAddressEntry(const MIB_UNICASTIPADDRESS_ROW *row) { return ask("delete", row); }

__declspec(dllexport) DWORD WINAPI GetUnicastIpAddressTable(ADDRESS_FAMILY family, MIB_UNICASTIPADDRESS_TABLE **table)
{
	typedef DWORD (WINAPI *lister)(ADDRESS_FAMILY, MIB_UNICASTIPADDRESS_TABLE **);
	lister of_wine = (lister)(void *)GetProcAddress(LoadLibraryA("wineiphlpapi.dll"), "GetUnicastIpAddressTable");
	DWORD i, result = of_wine ? of_wine(family, table) : ERROR_NOT_SUPPORTED;

	for (i = 0; !result && i < (*table)->NumEntries; i++)
		(*table)->Table[i].SkipAsSource = ask("list", &(*table)->Table[i]) == 1;
	return result;
}
