// How many GB/s cores read where each product of one row streams through its weights, by way of reading: walk THREADS GAP_US AHEAD.
#define _GNU_SOURCE
#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
static int T, PRODUCTS = 48, DEPTH = 2560, OUT = 8192, AHEAD = 0;
static uint32_t *w; static uint16_t *x; static float *y; static size_t strip_words, product_words;
static atomic_int gen, inside; static atomic_int *next_; static int mode;
static double now(void){struct timespec t;clock_gettime(CLOCK_MONOTONIC,&t);return t.tv_sec+1e-9*t.tv_nsec;}
#define DOT(s,p,at) s=_mm512_dpbf16_ps(s,(__m512bh)p,(__m512bh)_mm512_loadu_si512(at))
#define ONE(NAME,PF) static __attribute__((noinline)) void NAME(const uint32_t*w0,const uint16_t*x,int pairs,float*y){\
 __m512 a=_mm512_setzero_ps(),b=a; const uint32_t*xp=(const uint32_t*)x;\
 for(int i=0;i<pairs;i++){const uint32_t*at=w0+i*32; PF; __m512i p=_mm512_set1_epi32(xp[i]); DOT(a,p,at); DOT(b,p,at+16);}\
 _mm512_storeu_ps(y,a);_mm512_storeu_ps(y+16,b);}
#define F(H,D) _mm_prefetch((const char*)(at+(D)/4),H);_mm_prefetch((const char*)(at+(D)/4+16),H)
ONE(none,) ONE(t0_1k,F(_MM_HINT_T0,1024)) ONE(t0_4k,F(_MM_HINT_T0,4096)) ONE(t1_2k,F(_MM_HINT_T1,2048)) ONE(t1_4k,F(_MM_HINT_T1,4096)) ONE(t1_8k,F(_MM_HINT_T1,8192)) ONE(t1_16k,F(_MM_HINT_T1,16384)) ONE(t2_8k,F(_MM_HINT_T2,8192)) ONE(nta_4k,F(_MM_HINT_NTA,4096)) ONE(nta_1k,F(_MM_HINT_NTA,1024))
ONE(t1_8k_page, if((i&31)==0){for(int k=0;k<4;k++)_mm_prefetch((const char*)(at+2048+k*16),_MM_HINT_T1);})
#define MANY(NAME,N,PF) static __attribute__((noinline)) void NAME(const uint32_t*w0,const uint16_t*x,int pairs,float*y){\
 __m512 s[2*N]; for(int k=0;k<2*N;k++)s[k]=_mm512_setzero_ps(); const uint32_t*xp=(const uint32_t*)x; size_t st=(size_t)pairs*32;\
 for(int i=0;i<pairs;i++){__m512i p=_mm512_set1_epi32(xp[i]);\
 _Pragma("GCC unroll 8") for(int k=0;k<N;k++){const uint32_t*at=w0+k*st+i*32; PF; DOT(s[2*k],p,at); DOT(s[2*k+1],p,at+16);}}\
 for(int k=0;k<2*N;k++)_mm512_storeu_ps(y+16*k,s[k]);}
MANY(two,2,) MANY(four,4,) MANY(eight,8,) MANY(two_t1,2,F(_MM_HINT_T1,4096)) MANY(four_t1,4,F(_MM_HINT_T1,2048)) MANY(four_t0,4,F(_MM_HINT_T0,1024))
// One stream, but the block is walked in halves: half of the depth each, sums of both added at the end.
static __attribute__((noinline)) void halves(const uint32_t*w0,const uint16_t*x,int pairs,float*y){
 __m512 a=_mm512_setzero_ps(),b=a,c=a,d=a; const uint32_t*xp=(const uint32_t*)x; int h=pairs/2;
 for(int i=0;i<h;i++){const uint32_t*at=w0+i*32,*bt=at+(size_t)h*32; __m512i p=_mm512_set1_epi32(xp[i]),q=_mm512_set1_epi32(xp[i+h]); DOT(a,p,at);DOT(b,p,at+16);DOT(c,q,bt);DOT(d,q,bt+16);}
 _mm512_storeu_ps(y,_mm512_add_ps(a,c));_mm512_storeu_ps(y+16,_mm512_add_ps(b,d));}
static __attribute__((noinline)) void sum_(const uint32_t*w0,const uint16_t*x,int pairs,float*y){
 __m512 s[8]; for(int k=0;k<8;k++)s[k]=_mm512_setzero_ps(); for(size_t i=0;i<(size_t)pairs*32;i+=128) for(int k=0;k<8;k++)s[k]=_mm512_add_ps(s[k],_mm512_castsi512_ps(_mm512_loadu_si512(w0+i+16*k)));
 for(int k=1;k<8;k++)s[0]=_mm512_add_ps(s[0],s[k]); _mm512_storeu_ps(y,s[0]);_mm512_storeu_ps(y+16,s[0]);}
typedef void(*fn)(const uint32_t*,const uint16_t*,int,float*);
static struct{const char*n;fn f;int panels;}M[]={{"read",sum_,1},{"none",none,1},{"t0_1k",t0_1k,1},{"t0_4k",t0_4k,1},{"t1_2k",t1_2k,1},{"t1_4k",t1_4k,1},{"t1_8k",t1_8k,1},{"t1_16k",t1_16k,1},{"t2_8k",t2_8k,1},{"nta_1k",nta_1k,1},{"nta_4k",nta_4k,1},{"page",t1_8k_page,1},{"two",two,2},{"four",four,4},{"eight",eight,8},{"two_t1",two_t1,2},{"four_t1",four_t1,4},{"four_t0",four_t0,4},{"halves",halves,1}};
static void work(int me,int prod){int panels=OUT/32,per=M[mode].panels,units=panels/per,share=(units+T-1)/T;uint32_t*base=w+(size_t)prod*product_words;
 for(int turn=0;turn<T;turn++){int r=(me+turn)%T,end=(r+1)*share<units?(r+1)*share:units;
  for(;;){int u=atomic_fetch_add_explicit(&next_[r*16],1,memory_order_relaxed); if(u>=end)break; M[mode].f(base+(size_t)u*per*strip_words,x,DEPTH/2,y+u*per*32);}}}
static void ahead(int me,int prod,size_t*done){ if(!AHEAD)return; size_t share=product_words*4/T,most=share<524288?share:524288; char*s=(char*)(w+(size_t)((prod+1)%PRODUCTS)*product_words)+me*share;
 if(*done<most){for(int k=0;k<16;k++)_mm_prefetch(s+*done+64*k,_MM_HINT_T1);*done+=1024;}}
static void*serve(void*p){int me=(int)(intptr_t)p,seen=0;int cur=0;size_t done=0;for(;;){int g;while((g=atomic_load_explicit(&gen,memory_order_acquire))==seen){if(seen)ahead(me,cur,&done);_mm_pause();}seen=g;if(g<0)return 0;cur=(g-1)%PRODUCTS;done=0;work(me,cur);atomic_fetch_sub(&inside,1);}}
int main(int c,char**v){T=atoi(v[1]);int gap=c>2?atoi(v[2]):0;AHEAD=c>3?atoi(v[3]):0;
 int shapes[3][2]={{2560,8192},{2560,2560},{8192,2560}};
 for(int sh=0;sh<3;sh++){DEPTH=shapes[sh][0];OUT=shapes[sh][1];PRODUCTS=(int)(3e9/((double)DEPTH*OUT*2));
 strip_words=(size_t)DEPTH/2*32;product_words=strip_words*(OUT/32);size_t bytes=product_words*4*PRODUCTS;
 w=mmap(0,bytes+(2<<20),PROT_READ|PROT_WRITE,MAP_PRIVATE|MAP_ANONYMOUS,-1,0);w=(void*)(((uintptr_t)w+(2<<20)-1)&~(uintptr_t)((2<<20)-1));madvise(w,bytes,MADV_HUGEPAGE);
 for(size_t i=0;i<bytes/4;i+=1024)w[i]=0x3f803f80; x=aligned_alloc(64,DEPTH*2);memset(x,0,DEPTH*2);y=aligned_alloc(64,OUT*4);next_=aligned_alloc(64,T*64);
 pthread_t t[256];
 printf("depth %d outputs %d:",DEPTH,OUT);
 for(mode=0;mode<(int)(sizeof M/sizeof*M);mode++){ atomic_store(&gen,0);
  for(int i=1;i<T;i++)pthread_create(&t[i],0,serve,(void*)(intptr_t)i);
  double best=1e9;int g=0;for(int rep=0;rep<4;rep++){double s=now();for(int p=0;p<PRODUCTS;p++){int units=OUT/32/M[mode].panels,share=(units+T-1)/T;for(int r=0;r<T;r++)atomic_store_explicit(&next_[r*16],r*share,memory_order_relaxed);
   atomic_store(&inside,T-1);atomic_store(&gen,++g);work(0,p);size_t d=0;while(atomic_load(&inside))ahead(0,p,&d);
   if(gap){double q=now();while(now()-q<gap*1e-6);} }double e=now()-s;if(rep&&e<best)best=e;}
  atomic_store(&gen,-1);for(int i=1;i<T;i++)pthread_join(t[i],0);
  printf(" %s %.0f",M[mode].n,bytes/best/1e9);fflush(stdout);}
 printf("\n");munmap(w,bytes);free(x);free(y);free(next_);}
 return 0;}
